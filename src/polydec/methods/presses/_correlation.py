"""Which vectors of a tile stay: as many as its patches are no repetitions, those that the tower looks at
most."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from polydec.methods.presses._vector_choices import RandomOrder, share_count, unit_rows
from polydec.models.nets.tile_evidence import TileEvidence
from polydec.models.sessions.image_press import KeptVectors


@dataclass(frozen=True)
class RepeatedPatterns:
    """How much of a tile repeats itself.

    Attributes:
        alike: Cosine of two keys above which one repeats the other.
        copies: A vector is redundant that more than this share of all vectors repeat, itself left out.
        least: Vectors that stay in any case.
    """

    alike: float
    copies: float
    least: int

    def kept_count(self, cosine_KK: np.ndarray) -> int:
        """How many vectors stay: as many as are not redundant, and `least` at least.

        Args:
            cosine_KK: Cosines of all pairs of keys.
        """
        size = len(cosine_KK)
        like_KK = cosine_KK > self.alike
        # A vector is no copy of itself.
        np.fill_diagonal(like_KK, False)
        redundant = int((like_KK.sum(1) > self.copies * size).sum())
        return min(size, max(self.least, size - redundant))


@dataclass(frozen=True)
class LookedAt:
    """The vectors that a tower's layers look at most.

    Outliers of an early layer, which looks at small marks, and of the last one come first, then those
    that the last one looks at most.

    Attributes:
        local: Which layer is the early one, as a share of those that ran.
        drawn: Whether what outliers leave room for is drawn, in proportion to what the last layer gives,
            or taken from the most down.
        seed: Another number draws others.
    """

    local: float
    drawn: bool
    seed: int

    def find_outliers(self, looked_LK: np.ndarray) -> list[int]:
        """The outliers of both layers, those first that the last one looks at most.

        Args:
            looked_LK: Attention on each vector, by layer.
        """
        last = len(looked_LK) - 1
        # One layer, where the early one is the last.
        used = {ceil(self.local * last - 1e-9), last}
        found = {int(i) for layer in used for i in outliers_of(looked_LK[layer])}
        return sorted(found, key=lambda i: (-looked_LK[-1, i], i))

    def fill_room(self, looked_LK: np.ndarray, taken: list[int], count: int) -> list[int]:
        """Take further vectors until there are so many.

        Args:
            looked_LK: Attention on each vector, by layer.
            taken: Those that stay already.
            count: How many there shall be.

        Returns:
            All that stay.
        """
        left = [i for i in range(looked_LK.shape[1]) if i not in set(taken)]
        # The last layer looks at the whole of an image.
        score_K = looked_LK[-1]
        # A race of exponential clocks draws without replacement, in proportion to the scores.
        if self.drawn:
            told = np.random.Generator(np.random.PCG64(self.seed))
            clock_K = told.exponential(size=looked_LK.shape[1]) / np.maximum(score_K, 1e-300)
            left.sort(key=lambda i: clock_K[i])
        else:
            left.sort(key=lambda i: (-score_K[i], i))
        return [*taken, *left[: max(0, count - len(taken))]]


@dataclass(frozen=True)
class CorrelationChoice:
    """Keeps of a tile as many vectors as repeat no pattern, and of these the ones that are looked at most;
    a tile that shows the whole of a parted image stays as it is.

    Attributes:
        repeats: How many stay.
        looked: Which ones.
        share: How many stay in place of that, as a share of the tile's. 0: what repeats decides.
        anything: Any vectors stay, as many, which this draws: what the others are compared with. None:
            those that are looked at.
        averages: Whether what is left out is averaged into the vector that stays and is most alike.
    """

    repeats: RepeatedPatterns
    looked: LookedAt
    share: float
    anything: RandomOrder | None
    averages: bool
    watches_tower = True

    def keep_vectors(self, vectors_KD: Tensor, evidence: TileEvidence | None) -> KeptVectors:
        """Take the vectors of a tile that repeat nothing.

        Args:
            vectors_KD: The vectors, ``[K, width]``.
            evidence: What the tower's layers look at in the tile.

        Returns:
            Those that stay, in their order.
        """
        size = len(vectors_KD)
        every = KeptVectors(tuple(range(size)), vectors_KD)
        assert evidence is not None, "a tower is watched where somebody asks for that"
        # Its parts are compressed; what they lose is seen here.
        if evidence.is_overview:
            return every
        unit_KD = unit_rows(evidence.keys_KD.double().numpy())
        cosine_KK = unit_KD @ unit_KD.T
        looked_LK = evidence.looked_LK.double().numpy()
        taken = self.looked.find_outliers(looked_LK)
        # A given share is kept to; else no outlier is left out for want of room.
        if self.share:
            count = share_count(self.share, size)
            taken = taken[:count]
        else:
            count = max(len(taken), self.repeats.kept_count(cosine_KK))
        if count >= size:
            return every
        # What is compared with has as many vectors, and none of the evidence.
        if self.anything is None:
            taken = self.looked.fill_room(looked_LK, taken, count)
        else:
            taken = self.anything.take_vectors(vectors_KD.double().numpy(), count)
        # In the order in which they stood: positions must ascend.
        cells = tuple(sorted(taken))
        if self.averages:
            return KeptVectors(cells, averaged_into(vectors_KD, cells, cosine_KK))
        return KeptVectors(cells, vectors_KD[torch.tensor(cells)])


def outliers_of(score_K: np.ndarray) -> np.ndarray:
    """Indices of scores above the third quartile by more than one and a half times the distance of the
    quartiles."""
    # By Tukey's rule.
    low, high = np.percentile(score_K, (25, 75))
    return np.nonzero(score_K > high + 1.5 * (high - low))[0]


def averaged_into(vectors_KD: Tensor, cells: tuple[int, ...], cosine_KK: np.ndarray) -> Tensor:
    """Vectors that stay, each the mean of itself and of those left out that are most like it.

    Args:
        vectors_KD: All vectors.
        cells: Which ones stay.
        cosine_KK: How alike each two are.

    Returns:
        As many as stay, ``[M, width]``.
    """
    kept = list(cells)
    # Of equals the first, as numpy finds it; what stays goes to itself.
    into_K = cosine_KK[:, kept].argmax(1)
    into_K[kept] = np.arange(len(kept))
    to_K = torch.from_numpy(into_K)
    # Each kept vector gets its own at least, so none is divided by 0.
    sum_MD = vectors_KD.new_zeros(len(kept), vectors_KD.shape[1]).index_add_(0, to_K, vectors_KD)
    return sum_MD / torch.bincount(to_K, minlength=len(kept))[:, None]
