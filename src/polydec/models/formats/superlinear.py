"""What a config.json says of superlinear attention: which keys a query may reach, and how many."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polydec.base.errors import RequestError
from polydec.models.formats import edge
from polydec.models.formats.fields import SuperlinearFields


@dataclass(frozen=True)
class SuperlinearRule:
    """Where a query at position t (from 0) searches, and what it then reads.

    Anchors stand at ``t + 1 - floor(i ** (1 / search_power))`` for i from `near` + 1 on: with a
    power of one half the distances are squares, and there are some sqrt(t) of them. The `spans`
    anchors of the highest search scores are chosen, and of each the keys up to it are read, with
    those of a window that ends at t.

    Attributes:
        spans: Anchors that are chosen.
        near: Stripes of anchors that the window stands for; its length is
            ``floor((near + 1) ** (1 / search_power)) - 1``, so 0: there is none.
        search_power: How the number of anchors grows with the text.
        span_power: How the length of a span grows with the text.
        behind: Keys before an anchor, times the length of the text to `span_power`.
        ahead: Keys after it, likewise.
        search_scale: What search scores are multiplied by.

    Raises:
        RequestError: A value lies outside of its range.

    Source: "Superlinear Multi-Step Attention" (2026), and the authors' package superlinear 0.1.0.
    """

    spans: int = 3
    near: int = 0
    search_power: float = 0.5
    span_power: float = 0.5
    behind: float = 2.0
    ahead: float = 0.0
    search_scale: float = 1.0

    def __post_init__(self) -> None:
        edge.validate_record(SuperlinearFields, asdict(self), "superlinear")

    @staticmethod
    def of_config(config: Mapping[str, Any]) -> SuperlinearRule:
        """The rule of a model's config.json.

        Args:
            config: Its fields; `superlinear` holds the rule, and may leave out what is as usual.

        Returns:
            The rule.

        Raises:
            RequestError: A value lies outside of its range, or some position of the model's context
                could never be read.
        """
        given = edge.validate_record(SuperlinearFields, config.get("superlinear") or {}, "config")
        rule = SuperlinearRule(**given.model_dump())
        rule.require_coverage(config["max_position_embeddings"])
        return rule

    @property
    def window_length(self) -> int:
        """Positions of the window, t among them."""
        return int(self._distances(self.near + 1)[self.near]) - 1

    def stripe_distances(self, length: int) -> np.ndarray:
        """By stripe, how far anchors lie behind the end of a text, beginning with the first one
        that the window does not stand for.

        Args:
            length: Positions of the text.

        Returns:
            Ascending whole numbers from 1 to `length`: the anchor of a query at t with
            ``distance <= t + 1`` is ``t + 1 - distance``.
        """
        # Stripes grow faster than their number, so there are at most `length` of them.
        most = min(length, math.ceil(length**self.search_power) + 1)
        distance = self._distances(most)[self.near :]
        return distance[distance <= length]

    def _distances(self, count: int) -> np.ndarray:
        """floor(i ** (1 / search_power)) for i = 1 to `count`."""
        i = np.arange(1, count + 1)
        # Whole numbers where there are some: floating point may fall short of a perfect square.
        if self.search_power == 0.5:
            return i * i
        return np.floor(i ** (1 / self.search_power) + 1e-9).astype(np.int64)

    def span_reach(self, length: np.ndarray, factor: float) -> np.ndarray:
        """How far a span reaches.

        Args:
            length: Positions of the text, as whole numbers.
            factor: `behind` or `ahead`.

        Returns:
            Whole numbers of the same shape.
        """
        # The square root is exact at perfect squares, which a general power need not be.
        root = np.sqrt(length) if self.span_power == 0.5 else length**self.span_power
        return np.ceil(factor * root).astype(np.int64)

    def keys_read(self, position: int) -> int:
        """How many keys a query looks at, at most: anchors, spans and the window.

        Args:
            position: Where it stands, from 0.

        Returns:
            The sum; a key that lies in several of them counts in each.
        """
        at = np.array(position + 1)
        span = int(self.span_reach(at, self.behind) + self.span_reach(at, self.ahead)) + 1
        return len(self.stripe_distances(position + 1)) + self.spans * span + self.window_length

    def require_coverage(self, context: int) -> None:
        """Check that every query can reach every position before it: some choice of anchors reads
        it.

        Args:
            context: Positions of the model.

        Raises:
            RequestError: Some position lies in no span and not in the window.
        """
        distance = self.stripe_distances(context)
        length = np.arange(max(self.window_length, 0) + 1, context + 1)
        if not len(length):
            return  # the window covers the text
        # Of every length the number of anchors, and the widest gap between two of them.
        count = np.searchsorted(distance, length, side="right")
        gap = np.maximum.accumulate(np.diff(distance, prepend=distance[:1]))[count - 1]
        # Before the last anchor there is none: the rest of the text must lie in its span.
        need = np.maximum(length - distance[count - 1], gap - 1)
        reach = self.span_reach(length, self.behind)
        reach = np.where(need > 0, reach + self.span_reach(length, self.ahead), reach)
        last_alone = self.span_reach(length, self.behind) < length - distance[count - 1]
        if (bad := (reach < need) | last_alone).any():
            raise RequestError(
                f"superlinear leaves gaps: behind position {int(length[bad][0]) - 1} some are in no span (behind is "
                f"{self.behind}, span_power {self.span_power}, search_power {self.search_power}): make behind larger"
            )
