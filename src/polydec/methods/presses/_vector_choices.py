"""Which vectors of an image stay: those that differ from one another, or any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from polydec.models.nets.tile_evidence import TileEvidence
from polydec.models.sessions.image_press import KeptVectors


class VectorOrder(Protocol):
    """In which order vectors are taken."""

    def take_vectors(self, vectors_KD: np.ndarray, count: int) -> list[int]:
        """Take some vectors.

        Args:
            vectors_KD: The vectors, ``[K, width]``, float64.
            count: How many are taken, 1 to K - 1.

        Returns:
            Their indices, in the order in which they are taken.
        """
        ...


@dataclass(frozen=True)
class FarthestFirst:
    """Greedy k-centre selection: next comes the vector whose nearest one among those that were taken is
    farthest away. A distance is one less the cosine.

    Of equal distances the lowest index is taken, so a copy of a vector comes after all others.

    Source: Gonzalez, Clustering to minimize the maximum intercluster distance, 1985.
    """

    def take_vectors(self, vectors_KD: np.ndarray, count: int) -> list[int]:
        """Take the first centre, then the farthest ones.

        Args:
            vectors_KD: The vectors, ``[K, width]``, float64.
            count: How many are taken, 1 to K - 1.

        Returns:
            Their indices, in the order in which they are taken.
        """
        return _take_farthest(vectors_KD, count, np.minimum)


@dataclass(frozen=True)
class LargestSum:
    """Greedy max-sum diversification: next comes the vector whose distances from all that were taken
    have the largest sum. A distance is one less the cosine."""

    def take_vectors(self, vectors_KD: np.ndarray, count: int) -> list[int]:
        """Take the first centre, then those of the largest sums.

        Args:
            vectors_KD: The vectors, ``[K, width]``, float64.
            count: How many are taken, 1 to K - 1.

        Returns:
            Their indices, in the order in which they are taken.
        """
        return _take_farthest(vectors_KD, count, np.add)


@dataclass(frozen=True)
class RandomOrder:
    """Any vectors, which the seed and the vectors alone decide: what others are compared with.

    Attributes:
        seed: Another number gives another order.
    """

    seed: int

    def take_vectors(self, vectors_KD: np.ndarray, count: int) -> list[int]:
        """Draw some.

        Args:
            vectors_KD: The vectors, ``[K, width]``, float64.
            count: How many are taken, 1 to K - 1.

        Returns:
            Their indices, in the order in which they are taken.
        """
        # The vectors too, so that images differ in which of theirs stay.
        told = blake2b(vectors_KD.tobytes() + str(self.seed).encode(), digest_size=8).digest()
        order = np.random.Generator(np.random.PCG64(int.from_bytes(told)))
        return order.permutation(len(vectors_KD))[:count].tolist()


def vector_orders(seed: int) -> Mapping[str, VectorOrder]:
    """Orders by the names that options give them; seed: of the random one."""
    return {"farthest": FarthestFirst(), "sum": LargestSum(), "random": RandomOrder(seed)}


@dataclass(frozen=True)
class ShareOfVectors:
    """Keeps a share of a tile's vectors, in the order in which they stood.

    Attributes:
        share: How much of them, above 0; one at least stays.
        order: Which ones.
    """

    share: float
    order: VectorOrder
    watches_tower = False

    def keep_vectors(self, vectors_KD: Tensor, evidence: TileEvidence | None) -> KeptVectors:
        """Take a share of the vectors of a tile.

        Args:
            vectors_KD: The vectors, ``[K, width]``.
            evidence: Not asked for.

        Returns:
            Those that stay, in their order.
        """
        size = len(vectors_KD)
        count = share_count(self.share, size)
        if count >= size:
            return KeptVectors(tuple(range(size)), vectors_KD)
        cells = tuple(sorted(self.order.take_vectors(vectors_KD.double().numpy(), count)))
        return KeptVectors(cells, vectors_KD[torch.tensor(cells)])


def share_count(share: float, size: int) -> int:
    """How many vectors stay.

    Args:
        share: As a share of all of them, 0 to 1.
        size: How many there are.

    Returns:
        Their number, rounded up, 1 at least.
    """
    # But for what a product of floats adds.
    return max(1, ceil(share * size - 1e-9))


def unit_rows(vectors_KD: np.ndarray) -> np.ndarray:
    """Vectors as long as one; a vector of zeros stays as it is."""
    length_K1 = np.linalg.norm(vectors_KD, axis=1, keepdims=True)
    return vectors_KD / np.where(length_K1 > 0.0, length_K1, 1.0)


def _first_centre(unit_KD: np.ndarray) -> int:
    """The vector that points furthest away from the mean direction: the paper names none."""
    return int((unit_KD @ unit_KD.mean(0)).argmin())


def _take_farthest(vectors_KD: np.ndarray, count: int, join: np.ufunc) -> list[int]:
    """Take the first centre, and then again and again the vector that is farthest from all that were taken.

    Args:
        vectors_KD: The vectors, ``[K, width]``, float64.
        count: How many are taken, 1 to K - 1.
        join: What makes one distance of those from several centres.

    Returns:
        Their indices, in the order in which they are taken.
    """
    unit_KD = unit_rows(vectors_KD)
    taken = [_first_centre(unit_KD)]
    far_K = 1.0 - unit_KD @ unit_KD[taken[0]]
    # Below every distance: what was taken never comes again.
    far_K[taken[0]] = -np.inf
    while len(taken) < count:
        # Of several the first, as numpy finds it.
        at = int(far_K.argmax())
        taken.append(at)
        far_K = join(far_K, 1.0 - unit_KD @ unit_KD[at])
        far_K[at] = -np.inf
    return taken
