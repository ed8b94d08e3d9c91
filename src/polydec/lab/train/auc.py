"""How well scores tell two classes apart."""

from __future__ import annotations

from torch import Tensor


def roc_auc(score_N: Tensor, yes_N: Tensor) -> float | None:
    """Measure how often, of one of a class and one of the other, the first has the higher score.

    Args:
        score_N: Scores.
        yes_N: Which are of the first class, booleans.

    Returns:
        0 to 1, rounded to four digits; ties count half; 0.5 is chance. None where all are of one
        class.
    """
    a = score_N[yes_N][:, None]
    b = score_N[~yes_N][None]
    if not a.numel() or not b.numel():
        return None
    return round(float(((a > b).float() + 0.5 * (a == b).float()).mean()), 4)
