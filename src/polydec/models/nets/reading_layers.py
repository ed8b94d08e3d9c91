"""What the networks that read a word at once are made of, and what each of them offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

END = 1
"""The token that ends a word, in the tokenizers of readers."""
NEVER = -1e9
"""Added to a score that must not count."""


@dataclass(frozen=True)
class ReadingShape:
    """Sizes of a reading head.

    Attributes:
        vocab: Tokens, marks included.
        width: Size of the states.
        heads: Heads of attention, a divisor of the width.
        longest: Letters of a word that the head was made for. One that walks from letter to letter
            has no such bound.
        places: Positions of an image at most.
        rounds: Rounds in which a head that walks refines what it reads (LISTER). Default 0.
        distances: Whether a head that walks also scores how far it goes (LISTER has no such bias).
            Default False.
        joins: Layers in which places and letters are joined (CPPD). Default 1.
    """

    vocab: int
    width: int
    heads: int
    longest: int
    places: int
    rounds: int = 0
    distances: bool = False
    joins: int = 1


class ReadingHead(Protocol):
    """A head that reads a word at once."""

    def word_logits(self, states_NW: Tensor) -> Tensor:
        """Read one image.

        Args:
            states_NW: States of the image, ``[N, W]``.

        Returns:
            Logits of the letters of its word in order, ``[T, V]``; what stands behind the first
            `END` says nothing.
        """
        ...


class PostNormLayer(nn.Module):
    """A transformer layer whose norms stand behind its sums: attention to what is read, and an MLP.

    `scaled` says whether scores are divided by the root of a head's size.
    """

    def __init__(self, width: int, heads: int, scaled: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5 if scaled else 1.0
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x_BTW: Tensor, read_BSW: Tensor, seen_BTS: Tensor | None = None) -> Tensor:
        """Run the layer.

        Args:
            x_BTW: What asks.
            read_BSW: What is read.
            seen_BTS: Which rows each may read; T may be 1, for all of them. None: all.

        Returns:
            Shape ``[B, T, W]``.
        """
        q, k, v = (
            m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for m, x in ((self.q, x_BTW), (self.k, read_BSW), (self.v, read_BSW))
        )
        mask = None if seen_BTS is None else torch.where(seen_BTS, 0.0, NEVER)[:, None]
        mixed = scaled_dot_product_attention(q, k, v, mask, scale=self.scale)
        x = self.first(x_BTW + self.o(mixed.transpose(1, 2).flatten(2)))
        return self.second(x + self.out(relu(self.into(x))))
