"""When a stream of embeddings is put into words: where it changes, or every so many of them.

Source: VL-JEPA (2025), selective decoding. Its clustering of a whole stream is `WardSegments`; that a
stream is followed as it comes, and how, is ours (`ChangeSegments`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polydec.base.errors import RequestError


@dataclass(frozen=True)
class StreamSegment:
    """Steps of a stream that are told by one text.

    Attributes:
        first: The first of them.
        stop: The one behind the last.
        embedding_E: What is put into words, of length 1.
    """

    first: int
    stop: int
    embedding_E: Tensor


class SegmentPolicy(Protocol):
    """Parts a stream."""

    def part_stream(self, embedding_TE: Tensor) -> list[StreamSegment]:
        """Part a stream of embeddings of length 1, at least one, into segments that follow one
        another."""
        ...


@dataclass(frozen=True)
class UniformSegments:
    """A text every so many steps, of the step that it begins with.

    Reduces to: a text a step at `every` of 1.

    Attributes:
        every: Steps, at least 1.
    """

    every: int = 1

    def __post_init__(self) -> None:
        _require(self.every >= 1, f"every is {self.every}: it must be at least 1")

    def part_stream(self, embedding_TE: Tensor) -> list[StreamSegment]:
        # The last segment may be shorter.
        steps = len(embedding_TE)
        return [
            StreamSegment(at, min(at + self.every, steps), embedding_TE[at])
            for at in range(0, steps, self.every)
        ]


@dataclass(frozen=True)
class WardSegments:
    """A text for each cluster of a whole stream, of its mean.

    Clusters are runs of steps. They begin as single ones, and again and again the two neighbours are
    merged whose merging costs the least, n m / (n + m) times the squared distance of their means,
    until `segments` are left, or the least cost is above `cost`.

    Reduces to: a text a step where `segments` is the number of steps.
    Source: VL-JEPA (2025); Ward, "Hierarchical grouping to optimize an objective function" (1963).

    Attributes:
        segments: How many texts at most; 0: only `cost` ends the merging.
        cost: Merging that costs more is left out, 0 or more; None: only `segments` ends it.
    """

    segments: int = 0
    cost: float | None = None

    def __post_init__(self) -> None:
        _require(self.segments >= 0, f"segments is {self.segments}: it must be at least 0")
        _require(self.cost is None or self.cost >= 0, f"cost is {self.cost}: it must be at least 0")
        _require(
            self.segments > 0 or self.cost is not None,
            "segments is 0 and cost is none: give one of them",
        )

    def part_stream(self, embedding_TE: Tensor) -> list[StreamSegment]:
        # Of each cluster where it begins, how many steps it has, and their mean.
        # In double: costs of equal merges must not differ by rounding.
        first = list(range(len(embedding_TE)))
        count = [1] * len(first)
        mean = list(embedding_TE.double())
        # One merge a turn, so that the order is that of the costs.
        while len(first) > max(1, self.segments):
            # Neighbours alone: a text tells a run of images, not a kind of them.
            costs = [
                count[i]
                * count[i + 1]
                / (count[i] + count[i + 1])
                * float((mean[i] - mean[i + 1]).square().sum())
                for i in range(len(first) - 1)
            ]
            # Of equal ones the first, so that a stream is parted in one way.
            at = min(range(len(costs)), key=lambda i: costs[i])
            if self.cost is not None and costs[at] > self.cost:
                break
            # The mean of the union, each step counting alike.
            whole = count[at] + count[at + 1]
            mean[at] = (count[at] * mean[at] + count[at + 1] * mean[at + 1]) / whole
            count[at] = whole
            # The second of the two is no cluster any more.
            for held in (first, count, mean):
                del held[at + 1]
        return [
            StreamSegment(begin, begin + n, normalize(m, dim=0).to(embedding_TE.dtype))
            for begin, n, m in zip(first, count, mean, strict=True)
        ]


@dataclass(frozen=True)
class ChangeSegments:
    """A text whenever a stream has changed, as it comes: no step looks ahead.

    A step begins a segment, and is put into words, where one less its cosine with the mean of the
    segment so far is above `change`, or the variance of the segment with it would be above `spread`:
    never less than `gap` steps behind the one before, and always `silence` steps behind it.

    Reduces to: a text every `silence` steps where nothing changes; a text a step at `silence` of 1.

    Attributes:
        change: 0 to 2.
        spread: Mean squared distance from the mean, 0 or more. None: it is not asked.
        gap: Steps, at least 1.
        silence: Steps, at least `gap`. None: no text is due without a change.
    """

    change: float
    spread: float | None = None
    gap: int = 1
    silence: int | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.change <= 2, f"change is {self.change}: it must lie in 0 to 2")
        _require(
            self.spread is None or self.spread >= 0,
            f"spread is {self.spread}: it must be at least 0",
        )
        _require(self.gap >= 1, f"gap is {self.gap}: it must be at least 1")
        _require(
            self.silence is None or self.silence >= self.gap,
            f"silence is {self.silence}: it must be at least gap ({self.gap})",
        )

    def part_stream(self, embedding_TE: Tensor) -> list[StreamSegment]:
        # The first step is told in any case.
        begins = [0]
        # Sum of the segment's embeddings: they have length 1, so its length tells their variance.
        total_E = embedding_TE[0].double()
        for at in range(1, len(embedding_TE)):
            step_E = embedding_TE[at].double()
            # Only what came before this step is looked at.
            since = at - begins[-1]
            if self._begins_anew(step_E, total_E, since):
                begins.append(at)
                total_E = step_E
            else:
                total_E = total_E + step_E
        # A segment ends where the next one begins.
        stops = [*begins[1:], len(embedding_TE)]
        return [
            StreamSegment(first, stop, embedding_TE[first])
            for first, stop in zip(begins, stops, strict=True)
        ]

    def _begins_anew(self, step_E: Tensor, total_E: Tensor, since: int) -> bool:
        """Whether a step begins a segment. since: steps of the segment before it."""
        # A gap goes before everything: words need time to be read.
        if since < self.gap:
            return False
        # Silence comes next, whatever the stream shows.
        if self.silence is not None and since >= self.silence:
            return True
        if 1 - float(torch.cosine_similarity(step_E, total_E, dim=0)) > self.change:
            return True
        # A slow drift within the segment may be no large step at any place.
        if self.spread is None:
            return False
        # The mean of |x - m|^2 is 1 - |m|^2 where all x have length 1.
        mean_E = (total_E + step_E) / (since + 1)
        return 1 - float(mean_E.square().sum()) > self.spread


def _require(holds: bool, why: str) -> None:
    """Raise RequestError with a sentence unless something holds."""
    if not holds:
        raise RequestError(why)
