"""How far one order agrees with another."""

from __future__ import annotations

import torch
from torch import Tensor


def spearman_correlation(score_N: Tensor, value_N: Tensor) -> float | None:
    """The correlation of the ranks of two lists; equal values share the mean of their ranks.

    Args:
        score_N: Numbers, shape ``[N]``.
        value_N: Numbers, shape ``[N]``.

    Returns:
        -1 to 1, rounded to four digits; None where one of the two has a single value, or there are
        fewer than two.

    Source: Spearman, "The proof and measurement of association between two things" (1904).
    """
    a, b = (_ranks(x_N) for x_N in (score_N, value_N))
    a = a - a.mean()
    b = b - b.mean()
    size = float((a.square().sum() * b.square().sum()).sqrt())
    if len(a) > 1 and size > 0.0:
        return round(float((a * b).sum()) / size, 4)
    return None


def _ranks(x_N: Tensor) -> Tensor:
    """Ranks from 0, in float64; equal values share their mean rank."""
    _, group_N, count_G = torch.unique(x_N, return_inverse=True, return_counts=True)
    # Values with g equal ones have ranks last - g to last - 1, of which this is the mean.
    last_G = count_G.cumsum(0).double()
    return (last_G - (count_G.double() + 1) / 2)[group_N]
