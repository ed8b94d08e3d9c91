"""A network that lifts a picture of few tokens to one of many, row by row (MuLo-SD).

The same module is trained and served.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_shuffle, silu


@dataclass(frozen=True)
class UpsamplingShape:
    """Sizes of an up-sampler.

    Attributes:
        height: Tokens of a column of the large picture.
        width: Tokens of a row of it.
        ratio: Rows, and columns, of the large picture for one of the small one, 2 or more.
        tiles: Tokens that draw something; the two pictures share them.
        units: Channels of the convolutions.
        layers: Convolutions, each of which looks two rows up and one column to each side.
    """

    height: int
    width: int
    ratio: int
    tiles: int
    units: int
    layers: int

    @property
    def low_height(self) -> int:
        """Tokens of a column of the small picture; the last one may lie over the edge."""
        # Rounded up: a large picture whose side is no multiple ends inside of the last row.
        return -(-self.height // self.ratio)

    @property
    def low_width(self) -> int:
        """Tokens of a row of the small picture."""
        return -(-self.width // self.ratio)

    def block_places(self, row: int) -> range:
        """The tokens of the large picture that a row of the small one covers; behind the last row none."""
        # Behind the last row both bounds are the picture's height, and the range is empty.
        begin = min(self.ratio * row, self.height)
        end = min(self.ratio * (row + 1), self.height)
        return range(begin * self.width, end * self.width)


class RowCausalUpsampler(nn.Module):
    """Logits of the tokens of a large picture, from those of a small one in the same rows and above.

    A table of the shared tokens, convolutions whose windows end with the row itself, as many
    channels for each token as it has places in the large picture (pixel shuffle), and a map to the
    tokens.

    Source: Multi-scale local speculative decoding for image generation (2026), its learned up-sampler;
    there it is trained on pixels, here on tokens, whose laws an exact test needs.
    """

    def __init__(self, shape: UpsamplingShape) -> None:
        super().__init__()
        self.shape = shape
        units = shape.units
        # Behind the tiles one more: a token that draws nothing, as the name of a class.
        self.embed = nn.Embedding(shape.tiles + 1, units)
        self.convolutions = nn.ModuleList(nn.Conv2d(units, units, 3) for _ in range(shape.layers))
        # A vector for each of the places that a token covers; pixel shuffle puts them there.
        self.spread = nn.Conv2d(units, units * shape.ratio**2, 1)
        self.head = nn.Linear(units, shape.tiles)

    def forward(self, token_BHW: Tensor) -> Tensor:
        """Lift pictures.

        Args:
            token_BHW: Tokens of the upper rows of small pictures, shape ``[B, H, W]``; any id that is
                no tile draws nothing.

        Returns:
            Logits, shape ``[B, r H, r W, K]``: r the ratio, K tiles.
        """
        # Any other id would be looked up outside of the table.
        known_BHW = torch.where(
            (token_BHW >= 0) & (token_BHW < self.shape.tiles), token_BHW, self.shape.tiles
        )
        # Convolutions want channels before rows and columns.
        x_BUHW = self.embed(known_BHW).permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            # Two rows above and none below: a row never sees what stands under it.
            seen = pad(x_BUHW, (1, 1, 2, 0))
            # Each layer adds to what is there, so few layers already say something.
            x_BUHW = x_BUHW + silu(convolution(seen))
        wide = silu(pixel_shuffle(self.spread(x_BUHW), self.shape.ratio))
        return self.head(wide.permute(0, 2, 3, 1))
