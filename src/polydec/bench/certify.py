"""Does a method keep its promise here? Greedy token equality with plain decoding, and where it first fails, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.api import LM, Prompt, generate
from polydec.core.scheduler import run
from polydec.core.types import Draft, Want
from polydec.request.ask import over
from polydec.shapers.sampling import Sampling, build_shapers
from polydec.targets.shaped import Shaped

NEAR_TIE = 1e-3


@dataclass(frozen=True)
class Comparison:
    """equal: the same tokens. Else `at` is the first position that differs (0 is the first generated token), `plain` and
    `method` the tokens there, `gap` by how much log-probability plain decoding's two candidates differ: a near-tie below
    1e-3, where rounding may decide, a fault above."""

    equal: bool
    tokens: int
    at: int | None = None
    plain: int | None = None
    method: int | None = None
    gap: float | None = None

    @property
    def verdict(self) -> str:
        return (
            "equal"
            if self.equal
            else "near-tie"
            if self.gap is not None and self.gap < NEAR_TIE
            else "fault"
        )


def compare(
    lm: LM,
    prompt: Prompt,
    method: str,
    options: Mapping[str, Any],
    *,
    sampling: Sampling,
    max_tokens: int,
    raw: bool = False,
    order: str = "vllm",
    cache: str | None = None,
    cache_options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Comparison:
    """Both sides greedy, in one process, over the same kind of cache. more: what else both requests hold, such as a constraint
    or stop strings."""
    common: dict[str, Any] = {
        "sampling": sampling,
        "max_tokens": max_tokens,
        "raw": raw,
        "order": order,
        "cache": cache,
        "cache_options": cache_options or {},
        **more,
    }
    plain = generate(lm, prompt, method="plain", **common).token_ids
    ours = generate(lm, prompt, method=method, options=options, **common).token_ids
    if plain == ours:
        return Comparison(True, len(plain))
    at = next(
        (i for i, (a, b) in enumerate(zip(plain, ours)) if a != b), min(len(plain), len(ours))
    )
    a, b = (ids[at] if at < len(ids) else None for ids in (plain, ours))
    text = (*lm.ids(prompt, raw=raw), *plain[:at])
    law = over(lm, cache, cache_options or {})[0]
    gap = None if a is None or b is None else _gap(law, text, at, sampling, order, a, b)
    return Comparison(False, len(plain), at, a, b, gap)


def _gap(
    model: Any,
    text: tuple[int, ...],
    generated: int,
    sampling: Sampling,
    order: str,
    a: int,
    b: int,
) -> float:
    """Difference of two tokens' log-probabilities under the shaped law before its last step, the argmax. (A constraint that
    allows both leaves it as it is.)"""
    shapers = build_shapers(
        sampling, order=order, eos=model.vocab.eos, words=model.vocab.words, geometry=model.geometry
    )[:-1]
    prompt = text[: len(text) - generated]

    async def score() -> tuple[float, ...]:
        session = Shaped(model, *shapers).open(prompt)
        await session.prefill(Want())
        session.commit(text[len(prompt) - 1 : -1])
        return (await session.score(Draft.chain(text[-1]), Want())).logp(0, (a, b))

    one, other = run([score()])[0]
    return abs(one - other)
