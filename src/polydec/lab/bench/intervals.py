"""Intervals of what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""What 97.5 % of Student's law lie below, for 1 to 9 degrees of freedom."""


def wilson_interval(k: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share after Wilson.

    A sum of values from 0 to 1 may stand for the count: their mean varies no more than a share of
    the same mean, so the interval is wide enough.

    Args:
        k: How many of the trials succeeded, 0 to n.
        n: Trials, at least 1.

    Returns:
        Lower and upper end, 0 to 1.
    """
    # The score interval: centre and half width before division by 1 + z^2 / n.
    z = 1.96
    p = k / n
    mid = p + z * z / (2 * n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (mid - half) / (1 + z * z / n), (mid + half) / (1 + z * z / n)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of independent values of one distribution, after Student.

    Of a single value it is that value, without width.
    """
    mean = fmean(values)
    n = len(values)
    if n < 2:
        return mean, mean
    # Beyond the table one value serves: it shrinks slowly, and a wider interval is safe.
    if n - 2 < len(STUDENT):
        quantile = STUDENT[n - 2]
    else:
        quantile = 2.23
    half = quantile * stdev(values) / sqrt(n)
    return mean - half, mean + half


def shared_trials_interval(shares: Sequence[float], n: int) -> tuple[float, float]:
    """The 95 % interval of a share when several models, or runs, share the trials equally.

    It is the wider one of Student's interval over the runs and Wilson's over the trials. Student's
    alone has no width where all runs agree.

    Args:
        shares: The share of each run, 0 to 1.
        n: Trials of all runs together, at least 1.

    Returns:
        Lower and upper end, 0 to 1.
    """
    low, high = student_interval(shares)
    least, most = wilson_interval(fmean(shares) * n, n)
    return max(0.0, min(low, least)), min(1.0, max(high, most))
