"""Intervals of the tables: what was measured task by task is drawn again, and a figure of the draws has its 95 % interval."""

from __future__ import annotations

from typing import Any

import numpy as np

DRAWS = 2000


def drawn_again(rows: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """As many tasks as there are, drawn with replacement; the same draws for every table of a length.

    Args:
        rows: What was measured of each task, shape ``[N, …]``.
        draws: How often they are drawn.

    Returns:
        The drawn rows, shape ``[draws, N, …]``.
    """
    count = len(rows)
    return rows[np.random.default_rng(0).integers(0, count, (draws, count))]


def central_interval(figures: Any) -> tuple[float, float]:
    """Where 95 % of a figure's draws lie."""
    low, high = np.quantile(figures, (0.025, 0.975))
    return float(low), float(high)


def speed_over(sums: Any) -> Any:
    """Speed over the other side's, of (work, seconds, their work, their seconds, …) in the last axis."""
    return sums[..., 0] / sums[..., 1] * sums[..., 3] / sums[..., 2]
