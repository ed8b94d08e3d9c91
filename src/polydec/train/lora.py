"""Low-rank adapters on a network's layers: they are trained, the weights stay, and in the end both are one (LoRA)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Low(nn.Module):
    """A matrix with `up` times `down` added, which is nothing at first."""

    def __init__(self, rows: int, columns: int, rank: int, g: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, columns, generator=g) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def adapt(network: nn.Module, rank: int, seed: int) -> None:
    """Put an adapter on every linear part of the network's layers; nothing else is trained from then on."""
    g = torch.Generator().manual_seed(seed)
    network.requires_grad_(False)
    for name, part in list(network.named_modules()):
        if isinstance(part, nn.Linear) and ".layers." in f".{name}.":
            low = Low(part.out_features, part.in_features, rank, g)
            parametrize.register_parametrization(part, "weight", low)


def merge(network: nn.Module) -> None:
    """Make the adapters part of the weights, and trainable all of them."""
    for part in network.modules():
        if parametrize.is_parametrized(part, "weight"):
            parametrize.remove_parametrizations(part, "weight")
    network.requires_grad_(True)
