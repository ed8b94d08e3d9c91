"""Does a method keep its promise here? Greedy token equality with plain decoding, and where it
first fails, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.api import Ask, LoadedModel, Prompt, generate
from polydec.core.trace import TraceEvent
from polydec.lab.bench.certificate import content_digest
from polydec.lab.bench.places import TokenPlaceObserver
from polydec.lab.bench.shapes import measure_candidate_gap, target_before_argmax
from polydec.lab.testing.exercised_counts import DRAFT_KINDS, ExercisedCollector
from polydec.laws.shapers.sampling import Sampling
from polydec.request.ask import plan_request


@dataclass(frozen=True)
class GreedyComparison:
    """Greedy texts of a method and of plain decoding, compared.

    Attributes:
        equal: Whether both wrote the same tokens.
        tokens: Tokens of plain decoding's text.
        at: The first position that differs, 0 is the first generated token; None where the texts
            are equal.
        plain: Plain decoding's token there; None where its text has ended.
        method: The method's token there; None where its text has ended.
        gap: By how much log-probability, nats, the two tokens differ under plain decoding's law.
        noise: The largest difference, nats, that other shapes of passes make to that gap.
        tie: Whether the gap lies within the noise, so that rounding may decide.
        place: The pass of the method that wrote the token, in words.
        digest: A digest of the method's tokens, for whoever repeats the comparison.
        drafted: Draft tokens in the method's run.
        accepted: Draft tokens that were accepted.
        rejected: Draft tokens that were rejected.
    """

    equal: bool
    tokens: int
    at: int | None = None
    plain: int | None = None
    method: int | None = None
    gap: float | None = None
    noise: float | None = None
    tie: bool = False
    place: str = ""
    digest: str = ""
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0

    @property
    def verdict(self) -> str:
        if self.equal:
            return "equal"
        if self.tie:
            return "near-tie"
        return "fault"


def compare_greedy_texts(
    lm: LoadedModel,
    prompt: Prompt,
    method: str,
    options: Mapping[str, Any],
    *,
    sampling: Sampling,
    max_tokens: int,
    raw: bool = False,
    **more: Any,
) -> GreedyComparison:
    """Compare greedy texts of a method and of plain decoding, in one process.

    Args:
        lm: The loaded model.
        prompt: Text, chat messages or token ids.
        method: Name of the method.
        options: Its options.
        sampling: Sampling rules of both sides, at temperature 0.
        max_tokens: Tokens of an answer at most.
        raw: Whether the prompt goes in without the chat template. Default false.
        more: What else both requests hold, such as a constraint or stop strings.

    Returns:
        The comparison; where the texts differ, with the size of the gap at the first difference.
    """
    common: dict[str, Any] = {"sampling": sampling, "max_tokens": max_tokens, "raw": raw, **more}
    watch, collector = TokenPlaceObserver(), ExercisedCollector()

    def on_event(event: TraceEvent) -> None:
        watch(event)
        collector(event)

    # Plain decoding first: it is the reference, and needs no observer.
    plain = generate(lm, prompt, method="plain", **common).token_ids
    ours = generate(lm, prompt, method=method, options=options, on=on_event, **common).token_ids
    counts = collector.counts
    exercised = {name: getattr(counts, name) for name in DRAFT_KINDS}
    if plain == ours:
        return GreedyComparison(True, len(plain), digest=content_digest(ours), **exercised)
    # The first difference: a token that differs, or the end of the shorter text.
    at = next(
        (i for i, (a, b) in enumerate(zip(plain, ours)) if a != b), min(len(plain), len(ours))
    )
    a, b = (ids[at] if at < len(ids) else None for ids in (plain, ours))
    place = str(watch.token_place(0, at) or "")
    # One text ended: there are no two candidates whose gap could be measured.
    if a is None or b is None:
        return GreedyComparison(
            False, len(plain), at, a, b, place=place, digest=content_digest(ours), **exercised
        )
    # The gap is read off the law before the argmax, under several shapes of passes.
    made = plan_request(lm, Ask(prompt, method="plain", **common))
    decoder: Any = made.decoder
    found = measure_candidate_gap(
        target_before_argmax(decoder.target), made.request.prompt, plain[:at], a, b
    )
    return GreedyComparison(
        False,
        len(plain),
        at,
        a,
        b,
        found.size,
        found.noise,
        found.tie,
        place,
        content_digest(ours),
        **exercised,
    )
