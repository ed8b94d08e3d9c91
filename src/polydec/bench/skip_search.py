"""Which layers of a model can be left out while it drafts for itself: a search on a few prompts, decided by the clock.

First the order: from all layers on, the one is left out that costs least agreement with the model's own greedy texts (scored in
one pass each), the first and the last layer never. Only the `width` layers that did least harm when last tried are tried again,
as leaving one out seldom makes another one more dispensable. Then the number: along that order the recipe layer-skip is run and
timed, and the fastest is taken. Zhang et al., "Draft & verify" (2023), search both at once by Bayesian optimisation.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polydec import registry
from polydec.core.protocols import Target
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.core.types import Draft, Reads, Want

Layers = tuple[int, ...]
_WANT = Want(law=Reads.ARGMAX)


@dataclass(frozen=True)
class Found:
    """keep: the layers that draft; seconds: per token, of the recipe with them; plain: of plain decoding; order: layers in the
    order in which they were left out, each with the agreement that was left, 0 to 1; times: (layers left out, seconds per
    token) of what was timed."""
    keep: Layers
    seconds: float
    plain: float
    order: tuple[tuple[int, float], ...]
    times: tuple[tuple[int, float], ...]


def search(target: Target, prompts: Sequence[Sequence[int]], *, tokens: int = 48, width: int = 6, most: int | None = None,
           step: int = 2, clock: Callable[[], float] = time.perf_counter, watch: Callable[[str], None] = lambda s: None,
           **options: Any) -> Found:
    """target: greedy (shape it so); prompts: at least one, two tokens or more each; tokens: of an answer, 2 and more; width: 1
    and more; most: layers left out at most (None: half of them); step: every how many of them is timed (0: none
    is, and all of them are left out); clock: seconds;
    options: of layer-skip. Raises ValueError where the target's layers cannot run alone, or there are fewer than three."""
    L = target.layers
    if L < 3:
        raise ValueError(f"layers is {L}: a model of at least 3 layers that can run alone is needed")
    if not prompts or min(map(len, prompts)) < 2 or tokens < 2 or width < 1 or step < 0:
        raise ValueError("prompts, tokens, width and step must be: at least one prompt of two tokens, 2, 1 and 0")
    texts, plain = _timed(target, "plain", prompts, tokens, clock, {})
    order, keep, harm = list[tuple[int, float]](), tuple(range(L)), dict.fromkeys(range(1, L - 1), 0.0)
    for n in range(min(L // 2 if most is None else most, L - 2)):
        tried = {i: agreement(target, tuple(x for x in keep if x != i), prompts, texts)
                 for i in sorted(harm, key=lambda i: harm[i])[:width if n else L]}
        harm |= {i: -a for i, a in tried.items()}
        out = max(tried, key=lambda i: tried[i])
        keep, order = tuple(x for x in keep if x != out), [*order, (out, tried[out])]
        del harm[out]
        watch(f"{n + 1} layers left out, the last one {out}: agreement {tried[out]:.3f}")
    times = list[tuple[int, float]]()
    for n in range(step, len(order) + 1, step) if step else ():
        given = {**options, "skip": ",".join(str(i) for i, _ in order[:n])}
        times.append((n, _timed(target, "layer-skip", prompts, tokens, clock, given)[1]))
        watch(f"{n} layers left out: {1000 * times[-1][1]:.2f} ms a token, plain {1000 * plain:.2f}")
    best = min(times, key=lambda t: t[1], default=(len(order), float("nan")))
    return Found(_without(L, order[:best[0]]), best[1], plain, tuple(order), tuple(times))


def agreement(target: Target, keep: Layers, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> float:
    """Share of the texts' tokens that these layers would have said, over prompts that all layers have seen."""
    right = total = 0
    for prompt, text in zip(prompts, texts, strict=True):
        session = target.open(prompt)
        scores = run([_score(session, keep, Draft.chain(prompt[-1], text[:-1]))])[0]
        right, total = right + sum(scores.argmax(i) == x for i, x in enumerate(text)), total + len(text)
        session.close()
    return right / total


async def _score(session: Any, keep: Layers, draft: Draft) -> Any:
    await session.prefill(Want(law=Reads.NOTHING))
    return await session.part(keep).score(draft, _WANT)


def _without(layers: int, order: Sequence[tuple[int, float]]) -> Layers:
    return tuple(sorted(set(range(layers)) - {i for i, _ in order}))


def _timed(target: Target, name: str, prompts: Sequence[Sequence[int]], tokens: int, clock: Callable[[], float],
           options: dict[str, Any]) -> tuple[list[tuple[int, ...]], float]:
    decoder, _ = registry.build(name, target, given=options)
    start, texts = clock(), list[tuple[int, ...]]()
    for p in prompts:
        texts.append(run([decoder.run(Request(tuple(p), max_tokens=tokens, ignore_eos=True))])[0].token_ids)
    return texts, (clock() - start) / sum(map(len, texts))
