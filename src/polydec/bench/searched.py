"""Searches and rollouts: what they say of their answers, computed again; and their ledger against the passes that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.api import LM, Ask, Prompt, generate
from polydec.bench.forced import fates
from polydec.core.scheduler import Pass
from polydec.request.ask import plan
from polydec.targets.searched import searched

CLOSE = 2e-3
"""Nats a token by which a score computed again may differ: passes of other shapes round otherwise."""


def _mean_power(total: float, length: int, options: Mapping[str, Any]) -> float:
    return total / length ** float(options["length_penalty"])


def _total(total: float, length: int, options: Mapping[str, Any]) -> float:
    return total


SCORES: Mapping[str, Callable[[float, int, Mapping[str, Any]], float]] = {
    "beam": _mean_power,
    "exact-extract": _total,
}
"""What a method's score is, of a text's summed log-probabilities and its length."""


@dataclass(frozen=True)
class Audit:
    """answers: how many; scored: scores that were computed again; apart: the largest difference a token, of a score or of a
    log-probability that was reported; booked and ran: passes and positions by the method's ledger and by the scheduler's
    record; place: of the first thing that is wrong."""

    answers: int
    scored: int
    logprobs: int
    apart: float
    booked: Mapping[str, int]
    ran: Mapping[str, int]
    place: str

    @property
    def verdict(self) -> str:
        return "fault" if self.place else "keeps it"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def audit(
    lm: LM,
    prompts: Sequence[tuple[Prompt, bool]],
    method: str,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    **request: Any,
) -> Audit:
    """One answer to each prompt. Scores are computed again where their definition is known (beam, exact-extract); the
    log-probabilities of the answer's tokens wherever the method reports them; the ledger always."""
    answers = scored = noted = 0
    furthest, place = 0.0, ""
    booked: dict[str, int] = {"passes": 0, "positions": 0}
    ran = dict(booked)
    for at, (prompt, raw) in enumerate(prompts):
        passes = list[Pass]()
        completion = generate(
            lm,
            prompt,
            method=method,
            options=options,
            raw=raw,
            seed=seed,
            logprobs=0,
            passes=passes,
            **request,
        )
        answers += 1
        made = plan(lm, Ask(prompt, method="plain", raw=raw, seed=seed, **request))
        decoder: Any = made.decoder
        answer, rng = completion.choices[0], np.random.default_rng(0)
        law = searched(decoder.target)
        mine = fates(law, made.request.prompt, {0: answer.token_ids}, rng)[0]
        total, length = -sum(f.surprise for f in mine), max(1, len(mine))
        own = [t for t in answer.logprobs or () if t.logp < 0.0]
        if own and len(own) == len(mine):
            noted += len(own)
            gaps = [abs(t.logp + f.surprise) for t, f in zip(own, mine, strict=True)]
            furthest = max(furthest, *gaps)
            wrong = next((i for i, gap in enumerate(gaps) if gap > CLOSE * 10), None)
            if wrong is not None and not place:
                place = (
                    f"prompt {at + 1}, token {wrong}: its log-probability is {gaps[wrong]:.1e} off"
                )
        define = SCORES.get(completion.method["name"])
        if define is not None and answer.score is not None:
            scored += 1
            right = define(total, length, completion.method["options"])
            gap = abs(answer.score - right) / max(1.0, abs(right) / abs(total or 1.0) * length)
            furthest = max(furthest, gap)
            if gap > CLOSE and not place:
                place = (
                    f"prompt {at + 1}: the score is {answer.score:.4f}, computed again {right:.4f}"
                )
        mine_of = [p for p in passes if p.model is lm.network]
        metrics = completion.metrics
        books = {
            "passes": int(metrics["target_passes"]),
            "positions": int(metrics["positions_fed"]),
        }
        real = {"passes": len(mine_of), "positions": sum(p.positions for p in mine_of)}
        booked = {k: booked[k] + books[k] for k in booked}
        ran = {k: ran[k] + real[k] for k in ran}
        place = place or _ledger(at, books, real, metrics, len(answer.token_ids))
    return Audit(answers, scored, noted, furthest, booked, ran, place)


def _ledger(
    at: int,
    books: Mapping[str, int],
    real: Mapping[str, int],
    metrics: Mapping[str, Any],
    length: int,
) -> str:
    """What in a ledger cannot be; nothing: ""."""
    if books["positions"] != real["positions"]:
        return f"prompt {at + 1}: {books['positions']} positions are booked and {real['positions']} were fed"
    if books["passes"] > real["passes"]:
        return f"prompt {at + 1}: {books['passes']} passes are booked and {real['passes']} ran"
    written = metrics.get("tokens_written")
    if written is not None and written < length:
        return f"prompt {at + 1}: {written} tokens are booked as written and the answer alone has {length}"
    scored = metrics.get("tokens_scored")
    if scored is not None and scored > real["positions"]:
        return f"prompt {at + 1}: {scored} tokens are booked as scored and {real['positions']} positions were fed"
    return ""
