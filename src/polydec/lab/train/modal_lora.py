"""Linear maps with an adapter for rows of images and another one for rows of words (MM-LoRA)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SCALE = 2.0
"""What the product of both thin matrices is multiplied by, as published."""


class ModalLinear(nn.Module):
    """A frozen linear map with thin pairs beside it; each adds nothing at first.

    Args:
        linear: The map, which is frozen.
        ranks: Of the pair for words, and of that for images; 0: rows of images go through that of
            words.
        images: How many rows of a text, its first ones, are an image's.
        dropout: Share of what the pairs read that training leaves out, 0 to below 1.
        g: Draws the matrices that read.
    """

    def __init__(
        self,
        linear: nn.Linear,
        ranks: tuple[int, int],
        images: int,
        dropout: float,
        g: torch.Generator,
    ) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.images = images
        self.dropout = dropout
        # With one factor at zero nothing changes at first, and the other still gives it a gradient.
        into = linear.in_features
        # Words first: pair 0 is theirs, and pair 1 that of images.
        self.down = nn.ParameterList(
            torch.randn(rank, into, generator=g) * into**-0.5 for rank in ranks if rank
        )
        self.up = nn.ParameterList(torch.zeros(linear.out_features, rank) for rank in ranks if rank)

    def forward(self, x_BTI: Tensor) -> Tensor:
        """What the map gives, with what the pairs add to their rows."""
        # The map itself reads all of a row: only what is learned is to be robust.
        y_BTI = F.dropout(x_BTI, self.dropout, self.training)
        out_BTO = self.linear(x_BTI)
        # One pair is for all rows.
        if len(self.down) == 1:
            return out_BTO + self._added(y_BTI, 0)
        added = [self._added(y_BTI[:, : self.images], 1), self._added(y_BTI[:, self.images :], 0)]
        return out_BTO + torch.cat(added, 1)

    def _added(self, y_BTI: Tensor, pair: int) -> Tensor:
        return SCALE * F.linear(F.linear(y_BTI, self.down[pair]), self.up[pair])


def add_modal_adapters(
    network: nn.Module, ranks: tuple[int, int], images: int, dropout: float, g: torch.Generator
) -> None:
    """Put pairs on every linear part of the network's layers.

    Args:
        network: The network, changed in place; nothing else of it is trained.
        ranks: See `ModalLinear`.
        images: The same.
        dropout: The same.
        g: The same.
    """
    network.requires_grad_(False)
    for name, part in list(network.named_modules()):
        # Head and embeddings lie outside of layers.
        if isinstance(part, nn.Linear) and ".layers." in f".{name}.":
            above, _, own = name.rpartition(".")
            made = ModalLinear(part, ranks, images, dropout, g)
            setattr(network.get_submodule(above), own, made)


def modal_parts(network: nn.Module) -> Iterator[tuple[str, ModalLinear]]:
    """The adapted parts of a network, with their names in it."""
    return ((name, part) for name, part in network.named_modules() if isinstance(part, ModalLinear))
