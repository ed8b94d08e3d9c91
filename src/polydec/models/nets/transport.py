"""Entropic optimal transport between two small sets of vectors of equal weight: Sinkhorn's steps,
in logarithms."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor


@torch.no_grad()
def sinkhorn_plan(cost: Tensor, softness: float, rounds: int) -> Tensor:
    """How much of each source goes to each sink.

    No gradient passes: at the optimum that of the transported cost is the plan itself (the envelope
    theorem).

    Args:
        cost: Cost of each pair, ``[..., P, M]``.
        softness: Weight of the entropy, above 0.
        rounds: Steps, at least 1.

    Returns:
        The plan, ``[..., P, M]``. It sums to 1; each sink receives 1 / M exactly, and each source
        gives 1 / P once the steps have settled.
    """
    *_, sources, sinks = cost.shape
    gain = -cost / softness
    for _ in range(rounds):
        # Each step scales rows, then columns, to their sums. In logarithms nothing overflows for a
        # small softness.
        gain = torch.log_softmax(gain, -1) - log(sources)
        gain = torch.log_softmax(gain, -2) - log(sinks)
    return gain.exp()
