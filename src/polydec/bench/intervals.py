"""Intervals of what was counted."""

from __future__ import annotations

from math import sqrt


def wilson(k: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share, k of n (n at least 1), after Wilson. Of a sum k of values from 0 to 1 it is
    wide enough for their mean: they vary no more than a share of the same mean."""
    z, p = 1.96, k / n
    mid, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (mid - half) / (1 + z * z / n), (mid + half) / (1 + z * z / n)
