"""Muon in fp32. torch's own iterates in bf16, which is slow where the machine cannot multiply it."""

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
    """Muon: Nesterov momentum (0.95) whose matrix of a step is made nearly orthogonal.

    Weight decay is decoupled; the rate grows with the root of rows over columns. For matrices only.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with
    their coefficients.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step. `closure` is in torch's signature; it is not called."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                # Nesterov: the gradient moved towards the momentum that already contains it.
                update = orthogonalise_matrix(p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))


def orthogonalise_matrix(matrix: Tensor, rounds: int = 5) -> Tensor:
    """A matrix of the same singular vectors whose singular values lie near 1 (about 0.7 to 1.2).

    Args:
        matrix: Any matrix.
        rounds: Iterations of Newton and Schulz. Default 5.

    Returns:
        A matrix of the same shape.
    """
    # The Gram matrix is formed over the shorter side, which costs less.
    if matrix.shape[0] > matrix.shape[1]:
        x = matrix.T
    else:
        x = matrix
    # The Frobenius norm bounds the largest singular value, so all lie in 0 to 1 now.
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(rounds):
        # X becomes A X + (B G + C G G) X with G = X X^T: a polynomial of each singular value.
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    if matrix.shape[0] > matrix.shape[1]:
        return x.T
    return x
