"""How well scores tell two classes apart."""

from __future__ import annotations

from torch import Tensor


def roc_auc(score_N: Tensor, yes_N: Tensor) -> float | None:
    """How often, of one for which `yes_N` (booleans) holds and one for which it does not, the first has the higher score. Ties
    count half; 0.5 is chance. None where all are of one class."""
    a = score_N[yes_N][:, None]
    b = score_N[~yes_N][None]
    if not a.numel() or not b.numel():
        return None
    return round(float(((a > b).float() + 0.5 * (a == b).float()).mean()), 4)
