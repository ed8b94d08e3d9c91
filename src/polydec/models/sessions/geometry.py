"""Where tokens lie to one another: directions of a model's input embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

CHUNK = 4096  # rows of the table that are looked at together


class EmbeddingGeometry:
    """Embeddings with each dimension standardised over the vocabulary (mean 0, deviation 1), then
    brought to length 1.

    The table is read when somebody first asks, and never copied.

    Args:
        embed: Gives the rows of the table of some ids, ``[n, H]``.
        known: How many ids mean something, 1 or more, the lowest ones: a table may be padded after
            them, and its padding counts for nothing. It may be a function, which is called when
            somebody first asks.
    """

    def __init__(
        self, embed: Callable[[Sequence[int]], Tensor], known: int | Callable[[], int]
    ) -> None:
        self._embed = embed
        self._known = known

    @cached_property
    def known(self) -> int:
        """How many ids mean something."""
        if isinstance(self._known, int):
            return self._known
        return self._known()

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and 1 / deviation of each dimension; 0 for a dimension in which all tokens agree."""
        # Sums over chunks: E[x] and E[x^2] give mean and variance in one walk over the table.
        total = squares = torch.zeros(())
        for first in range(0, self.known, CHUNK):
            rows_NH = self._embed(range(first, min(self.known, first + CHUNK))).double()
            total = total + rows_NH.sum(0)
            squares = squares + rows_NH.square().sum(0)
        mean_H = total / self.known
        spread_H = (squares / self.known - mean_H.square()).clamp(min=0.0).sqrt()
        return mean_H, torch.where(spread_H > 1e-12, 1.0 / spread_H.clamp(min=1e-12), 0.0)

    def unit_vectors(self, tokens: Sequence[int]) -> Tensor:
        """Unit vectors (NH, float64) of these ids; the zero vector for one that lies at the mean."""
        mean_H, scale_H = self._moments
        rows_NH = (self._embed(tokens).double() - mean_H) * scale_H
        return rows_NH / rows_NH.norm(dim=1, keepdim=True).clamp(min=1e-12)
