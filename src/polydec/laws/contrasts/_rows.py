"""What rules of contrast share: rows without infinities, and the tokens that are plausible at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polydec.core.law import NEG_INF

FLOOR = -1e4
"""What stands for the log-probability of a token that another law rules out: a difference to it must stay a number."""


def floor_logprobs(logp_V: Tensor) -> Tensor:
    """Log-probabilities without -inf."""
    return logp_V.clamp(min=FLOOR)


def mask_implausible_tokens(mixed_V: Tensor, first_V: Tensor, head: float) -> Tensor:
    """The mixed row where a token has at least the fraction `head` of the likeliest one's probability under the first law (0:
    any probability), and -inf elsewhere. The likeliest always stays."""
    edge = first_V.max() + (math.log(head) if head else NEG_INF)
    return torch.where((first_V >= edge) & (first_V > NEG_INF), mixed_V, NEG_INF)
