"""Muon in fp32: torch's own iterates in bf16, which takes many times as long where the machine has no bf16 arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

A = 3.4445
B = -4.7750
C = 2.0315


class MuonOptimizer(torch.optim.Optimizer):
    """Momentum (0.95, Nesterov's) whose matrix of a step is made nearly orthogonal; decoupled weight decay; the rate grows with
    the root of rows over columns. For matrices only.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with their coefficients.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step. closure: as torch has it; none is called."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise_matrix(p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))


def orthogonalise_matrix(matrix: Tensor, rounds: int = 5) -> Tensor:
    """A matrix of the same singular vectors whose singular values lie near 1 (about 0.7 to 1.2), by Newton and Schulz."""
    if matrix.shape[0] > matrix.shape[1]:
        x = matrix.T
    else:
        x = matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    if matrix.shape[0] > matrix.shape[1]:
        return x.T
    return x
