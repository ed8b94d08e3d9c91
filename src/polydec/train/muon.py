"""Muon: momentum whose matrices are made orthogonal before they are taken as steps."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """For matrices. In fp32, as bf16 is slow on most CPUs; rates are those of torch's own: a step has the size of lr times the
    square root of rows / columns, where there are more rows.

    Source: Jordan et al., Muon (2024).
    """
    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:      # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                average = state["momentum_buffer"]
                average.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(average, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """Near the orthogonal matrix that is nearest to it: Newton-Schulz iterations of fifth order."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if wide is matrix else x.T
