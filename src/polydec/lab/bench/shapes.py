"""How much a law moves when its passes have other shapes: what rounding alone can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.laws.targets.shaped import ShapedTarget

WIDTHS = (1, 2, 5, 16)
"""Rows of a pass that are tried: a token a pass, a short draft, a longer one, a tree's worth. One
more try feeds it all as a prompt."""
MARGIN = 4.0
"""A gap is a near-tie up to so many times the largest difference between two shapes: a method's own
shapes are others."""
PLACES = 16
"""Places before the one in question at which shapes are compared as well."""
FLOOR = 1e-5
"""Nats below which a gap is a near-tie however little the shapes tried differ."""


def target_before_argmax(target: Target) -> Target:
    """The law before the rule that takes its likeliest token, where it has one."""
    if isinstance(target, ShapedTarget) and target.shapers:
        *before, last = target.shapers
        if last.reads is RowDetail.ARGMAX:
            return ShapedTarget(target.target, *before)
    return target


@dataclass(frozen=True)
class CandidateGap:
    """How far two candidates of a place are apart, and how much of that may be rounding.

    Attributes:
        differences: By how much log-probability, nats, the first one is likelier, under each shape
            of passes.
        before: What the shapes differ by at places before it, on the two likeliest tokens there.
    """

    differences: tuple[float, ...]
    before: tuple[float, ...] = ()

    @property
    def size(self) -> float:
        """The smallest difference, whichever candidate it favours."""
        return min(map(abs, self.differences))

    @property
    def noise(self) -> float:
        """The difference between shapes: here, or on average at the places before.

        A few shapes may agree by chance at one place, above all where a number type has so few
        digits that most of them round alike.
        """
        return max(
            finite_difference_range(self.differences), fmean(self.before) if self.before else 0.0
        )

    @property
    def tie(self) -> bool:
        """Whether rounding may decide between the two: their gap lies within the noise between
        shapes."""
        return isfinite(self.size) and self.size <= max(FLOOR, MARGIN * self.noise)


def measure_candidate_gap(
    target: Target, prompt: Sequence[int], tokens: Sequence[int], first_token: int, other: int
) -> CandidateGap:
    """Measure how much likelier one token is than another after a text, under several shapes of
    passes.

    Args:
        target: The law before its argmax.
        prompt: Token ids of the prompt.
        tokens: Token ids of the answer before the place in question.
        first_token: The first candidate.
        other: The second candidate.

    Returns:
        The gap under each shape, and the differences between shapes at the places before.
    """
    text = (*prompt, *tokens)
    start = len(prompt)
    # Without rules the end of the prompt may be scored like an answer, which gives more places to
    # compare. Rules treat the two differently.
    if not (isinstance(target, ShapedTarget) and target.shapers):
        start = max(1, min(start, len(text) - PLACES))
    pairs = list[tuple[int, int]]()

    async def feed_pairs(width: int | None) -> tuple[list[float], float]:
        """By how much the likeliest of each pair leads at the places before, and the first token
        here."""
        if width is None:
            begin = text
        else:
            begin = text[:start]
        session = target.open_session(begin)
        left = text[len(begin) :]
        before = list[float]()
        try:
            await session.prefill_prompt(ScoreRequest())
            root = begin[-1]
            # The last pass has as many rows as the others: tokens that follow the root do not
            # change its law.
            filler = (first_token,) * ((width or 1) - 1)
            while left:
                chunk = left[: width or 1]
                left = left[width or 1 :]
                scores = await session.score_draft(Draft.chain_draft(root, chunk), ScoreRequest())
                for node in range(len(chunk)):
                    # The first shape fixes the two tokens that all shapes compare.
                    if len(before) == len(pairs):
                        best, second = scores.likeliest_tokens(node, 2)[0]
                        pairs.append((best, second))
                    first, second = scores.token_logprobs(node, pairs[len(before)])
                    before.append(first - second)
                session.commit_tokens((root, *chunk[:-1]))
                root = chunk[-1]
            scores = await session.score_draft(Draft.chain_draft(root, filler), ScoreRequest())
            first, second = scores.token_logprobs(0, (first_token, other))
            return before, first - second
        finally:
            session.close()

    # Passes of different widths round differently: their spread is the noise of the machine.
    stepwise = [run_coroutines([feed_pairs(width)])[0] for width in WIDTHS]
    whole = run_coroutines([feed_pairs(None)])[0]
    places = zip(*(before for before, _ in stepwise), strict=True)
    noises = tuple(finite_difference_range(place) for place in places)[-PLACES:]
    return CandidateGap((whole[1], *(here for _, here in stepwise)), noises)


def finite_difference_range(differences: Sequence[float]) -> float:
    """The largest difference between two of these; 0 where one is not finite, as no rounding makes
    a token impossible.
    """
    if all(map(isfinite, differences)):
        return max(differences) - min(differences)
    return 0.0
