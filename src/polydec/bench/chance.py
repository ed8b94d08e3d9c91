"""Probabilities of what was counted, and what a test would have seen: chi-square and normal tails."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, sqrt
from statistics import NormalDist

import torch

NORMAL = NormalDist()


def two_sided(z: float) -> float:
    """The probability that a standard normal lies as far from 0."""
    return erfc(abs(z) / sqrt(2.0))


def beyond(x: float, degrees: float) -> float:
    """The probability that chi-square of so many degrees is at least x."""
    half = torch.tensor([degrees / 2.0, max(0.0, x) / 2.0], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def critical(alpha: float, degrees: float) -> float:
    """The x that chi-square exceeds with probability alpha."""
    return _root(lambda x: alpha - beyond(x, degrees), 0.0, 10.0 * degrees + 500.0)


def noncentral(alpha: float, power: float, degrees: float) -> float:
    """The non-centrality at which a chi-square test at alpha is passed by a fault with probability 1 - power only (after
    Patnaik)."""
    bound = critical(alpha, degrees)

    def missing(more: float) -> float:
        scale = (degrees + 2.0 * more) / (degrees + more)
        freedom = (degrees + more) ** 2 / (degrees + 2.0 * more)
        return beyond(bound / scale, freedom) - power

    return _root(missing, 0.0, 10.0 * bound + 100.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises through 0 does so."""
    for _ in range(100):
        mid = (low + high) / 2.0
        if rising(mid) < 0.0:
            low = mid
        else:
            high = mid
    return (low + high) / 2.0
