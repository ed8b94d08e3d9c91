"""Means of few runs, with Student's interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of a mean of so many values, 95 %."""


def interval_half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a mean of two to five values."""
    return STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5


def mean_with_interval(values: Sequence[float]) -> str:
    """Mean and half width, as tables have them."""
    return f"{statistics.fmean(values):.3f} ± {interval_half_width(values):.3f}"
