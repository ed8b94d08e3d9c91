"""How likely a model finds a text behind another: exactly where it continues texts, by draws where it fills canvases.

Source of the estimate for masked diffusion: LLaDA (Nie et al. 2025), whose evaluation draws a number of masks, then the places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb, fsum, sqrt
from typing import Any

from torch import Tensor

from polydec.api import Ask, Engine, LoadedModel
from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.law import normalise_log_weights
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.methods.registry.family import AUTOREGRESSIVE, MASKED_DIFFUSION, family_of

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids: a context, and the text behind it, each of at least one."""


@dataclass(frozen=True)
class TextLikelihood:
    """logp: of the text behind its context, in nats. Of a masked-diffusion model the mean over all orders in which the text may
    be written, a lower bound of what the model says. greedy: whether the model at temperature 0 writes this text; error: the
    standard error of logp, 0 where nothing was drawn; passes: forward passes of one text each that it took."""

    logp: float
    greedy: bool
    error: float = 0.0
    passes: int = 1


def text_likelihoods(
    lm: LoadedModel,
    pairs: Sequence[Pair],
    *,
    draws: int = 128,
    seed: int = 0,
    at_once: int = 16,
    most: int | None = None,
) -> list[TextLikelihood]:
    """Of each pair, in order. A context that is too long loses its beginning.

    draws: canvases for each text under a masked-diffusion model, at least 2; where a text has no more sets of gaps than this,
    all are taken and nothing is drawn. at_once: texts, or canvases of one text, whose passes are merged, at least 1. most:
    tokens of a context and its text together, None for what the model has room for. Raises RequestError for a number out of
    range, an empty text, a text longer than that, and a model that writes in another way.
    """
    for name, value, least in (("draws", draws, 2), ("at_once", at_once, 1)):
        if value < least:
            raise RequestError(f"{name} is {value}: it must be at least {least}")
    family = family_of(lm.checkpoint.lm)
    law = lm.checkpoint.lm
    if family not in (AUTOREGRESSIVE, MASKED_DIFFUSION) or hasattr(law, "encoder"):
        if hasattr(law, "encoder"):
            kind = "an encoder-decoder"
        else:
            kind = family.called
        raise RequestError(
            f"{lm.name} is {kind} model: texts are scored under models that continue texts or fill canvases"
        )
    room = (
        law.context if family is MASKED_DIFFUSION else law.context - 1
    )  # a pass writes one more token
    cut = [_fitting(pair, room if most is None else min(most, room)) for pair in pairs]
    if family.continues_text:
        return _continued(lm, cut, at_once)
    # draws hang on the text alone, so it has the same likelihood in any company
    named = [Rng.of(seed).at("likelihood", *context, "then", *text) for context, text in cut]
    return [
        run_coroutines([_masked(law, context, text, draws, at_once, rng)])[0]
        for (context, text), rng in zip(cut, named, strict=True)
    ]


def _fitting(pair: Pair, room: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    context, text = map(tuple, pair)
    if not context or not text:
        raise RequestError("a context or a text is empty: each needs at least one token")
    if len(text) >= room:
        raise RequestError(f"a text has {len(text)} tokens: there is room for {room - 1}")
    return context[max(0, len(context) + len(text) - room) :], text


def _continued(lm: LoadedModel, pairs: Sequence[Pair], at_once: int) -> list[TextLikelihood]:
    """One pass a text tells all of its laws."""
    engine = Engine(lm, max_running=at_once)
    tickets = [
        engine.submit(Ask((*context, *text), method="plain", max_tokens=1, prompt_logprobs=0))
        for context, text in pairs
    ]
    engine.run(tickets)
    scored: list[TextLikelihood] = []
    for ticket, (_, text) in zip(tickets, pairs, strict=True):
        tokens = (ticket.completion().prompt_logprobs or ())[-len(text) :]
        logps = [float("nan") if t.model_logp is None else t.model_logp for t in tokens]
        scored.append(TextLikelihood(fsum(logps), all(t.rank == 1 for t in tokens)))
    return scored


async def _masked(
    law: Any,
    context: tuple[int, ...],
    text: tuple[int, ...],
    draws: int,
    at_once: int,
    rng: Rng,
) -> TextLikelihood:
    """Block by block under a block-causal model, whose later blocks are not seen by the earlier ones."""
    whole = (*context, *text)
    start = len(context)
    logp = 0.0
    variance = 0.0
    passes = 0
    for number, places in enumerate(_parts(start, len(whole), law.block)):
        if 2 ** len(places) - 1 <= draws:
            sets = list(_all_sets(places))
        else:
            sets = None
        chosen = sets or [_drawn(places, rng.at("set", number, draw)) for draw in range(draws)]
        values: list[float] = []
        for at in range(0, len(chosen), at_once):
            group = chosen[at : at + at_once]
            values += await gather_coroutines(
                *(_filled_in(law, whole, places, gaps) for gaps in group)
            )
        passes += len(chosen)
        if sets:  # the mean over how many gaps there are, then over the sets of so many
            weights = [1.0 / (len(places) * comb(len(places), len(gaps))) for gaps in sets]
            logp += fsum(w * x for w, x in zip(weights, values, strict=True))
        else:
            mean = fsum(values) / draws
            logp += mean
            variance += fsum((x - mean) ** 2 for x in values) / (draws - 1) / draws
    greedy, more = await _is_greedy(law, whole, start)
    return TextLikelihood(logp, greedy, sqrt(variance), passes + more)


def _parts(start: int, stop: int, block: int) -> Iterator[range]:
    """The positions of the text that are written together."""
    if block:
        edges = range(start - start % block + block, stop, block)
    else:
        edges = ()
    bounds = [start, *edges, stop]
    for first, last in pairwise(bounds):
        yield range(first, last)


def _all_sets(places: range) -> Iterator[tuple[int, ...]]:
    for count in range(1, len(places) + 1):
        yield from combinations(places, count)


def _drawn(places: range, rng: Rng) -> tuple[int, ...]:
    """Some of the places: how many is drawn first, each number as likely as the others."""
    count = 1 + int(rng.uniform() * len(places))
    order = sorted(places, key=lambda p: rng.at("place", p).uniform())
    return tuple(sorted(order[:count]))


async def _laws(law: Any, whole: tuple[int, ...], stop: int, gaps: tuple[int, ...]) -> Tensor:
    """Log-probabilities at these gaps, where the text up to `stop` is known but for them, RV."""
    hidden = frozenset(gaps)
    canvas = tuple(None if i in hidden else x for i, x in enumerate(whole[:stop]))
    board = law.open(stop, 0)
    try:
        return normalise_log_weights(await board.score(canvas, gaps, range(stop)))
    finally:
        board.close()


async def _filled_in(
    law: Any, whole: tuple[int, ...], places: range, gaps: tuple[int, ...]
) -> float:
    """What one set of gaps says of all places: each of its gaps stands for as many places."""
    if law.block:
        stop = places.stop
    else:
        stop = len(whole)
    logp_RV = await _laws(law, whole, stop, gaps)
    return len(places) / len(gaps) * fsum(logp_RV[i, whole[p]].item() for i, p in enumerate(gaps))


async def _is_greedy(law: Any, whole: tuple[int, ...], start: int) -> tuple[bool, int]:
    """Whether the surest gap always gets the text's token, and how many passes told that."""
    passes = 0
    for places in _parts(start, len(whole), law.block):
        gaps = tuple(places)
        while gaps:
            if law.block:
                stop = places.stop
            else:
                stop = len(whole)
            logp_RV = await _laws(law, whole, stop, gaps)
            passes += 1
            best_R = logp_RV.max(-1)
            surest = int(best_R.values.argmax())
            if int(best_R.indices[surest]) != whole[gaps[surest]]:
                return False, passes
            gaps = (*gaps[:surest], *gaps[surest + 1 :])
    return True, passes
