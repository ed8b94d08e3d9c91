"""What rules of contrast share: rows without infinities, and the tokens that are plausible at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polydec.core.law import NEG_INF

FLOOR = -1e4
"""What stands for the log-probability of a token that another law rules out: a difference to it
must stay a number.
"""


def floor_logprobs(logp_V: Tensor) -> Tensor:
    """Log-probabilities without -inf."""
    return logp_V.clamp(min=FLOOR)


def mask_implausible_tokens(mixed_V: Tensor, first_V: Tensor, head: float) -> Tensor:
    """Mask the tokens that the first law finds implausible.

    Args:
        mixed_V: The mixed row, shape ``[V]``.
        first_V: Log-probabilities of the first law, shape ``[V]``.
        head: A token stays where it has at least this fraction of the largest probability, 0 to 1;
            0: any probability.

    Returns:
        `mixed_V` where a token is plausible and -inf elsewhere, shape ``[V]``. The likeliest token
        always stays.
    """
    # The adaptive plausibility constraint of contrastive decoding (Li et al. 2022).
    edge = first_V.max() + (math.log(head) if head else NEG_INF)
    return torch.where((first_V >= edge) & (first_V > NEG_INF), mixed_V, NEG_INF)
