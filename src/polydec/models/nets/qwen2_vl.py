"""The layout of Qwen2-VL in torch: a tower over all patches of an image, turned by rows and columns, and a
merger that makes one vector of a square of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import (
    conv2d,
    gelu,
    layer_norm,
    linear,
    scaled_dot_product_attention,
)

from polydec.models.formats.image_tiles import ImagePlan, ImageTiles
from polydec.models.formats.qwen2_vl import Qwen2VLShape
from polydec.models.nets.tile_evidence import TileEvidence, TowerWatch
from polydec.models.nets.vit import ACTIVATIONS, scaled_pixels

EPSILON = 1e-6
"""Added to the norms' variances."""
BASE = 10000.0
"""Of the frequencies by which rows and columns turn."""


class Qwen2VLTower:
    """Tower and merger.

    Args:
        shape: What they are.
        weights: Their tensors by name, which are read now, as float32.
        device: Where they compute.
    """

    def __init__(self, shape: Qwen2VLShape, weights: Mapping[str, Tensor], device: str) -> None:
        self.shape = shape
        self._device = torch.device(device)
        self._weights = {
            name: weights[name].float().to(self._device) for name in shape.tensor_shapes
        }
        # An image shows the same in all frames of a patch: their weights add up.
        self._patch = self._weights.pop("visual.patch_embed.proj.weight").sum(2)

    @property
    def tile_plan(self) -> ImagePlan:
        """How an image becomes the tile that it reads."""
        return self.shape.plan

    def grid_of(self, tiles: ImageTiles) -> tuple[int, int]:
        """Rows and columns of an image's vectors."""
        side = self.shape.patch * self.shape.merge
        return tiles.height // side, tiles.width // side

    @property
    def appended_count(self) -> int:
        """No vector stands behind those of the patches."""
        return 0

    def place_of(self, tiles: ImageTiles) -> tuple[str | int, ...]:
        """What stands in a prompt in the place of an image: texts, and numbers of its vectors."""
        rows, columns = self.grid_of(tiles)
        return (rows * columns,)

    def image_vectors(self, tiles: ImageTiles) -> Tensor:
        """The vectors of an image, row by row.

        Args:
            tiles: The image.

        Returns:
            The vectors, ``[k, width]``, float32.
        """
        return self._read_image(tiles, None)

    def watched_vectors(self, tiles: ImageTiles) -> tuple[Tensor, list[TileEvidence]]:
        """The vectors of an image, and what the tower's layers look at in it. Keys and queries count as
        they are before rows and columns turn them."""
        watch = TowerWatch(has_class=False)
        vectors_KD = self._read_image(tiles, watch)
        # The patches of a square stand one after another.
        each = self.shape.merge**2
        keys_KW = watch.keys_TPW[0].unflatten(0, (-1, each)).flatten(1)
        looked_LK = watch.looked_LTP[:, 0].unflatten(-1, (-1, each)).mean(-1)
        return vectors_KD, [TileEvidence(keys_KW.cpu(), looked_LK.cpu())]

    @torch.inference_mode()
    def _read_image(self, tiles: ImageTiles, watch: TowerWatch | None) -> Tensor:
        """The vectors of an image; watch: notes what layers look at."""
        shape = self.shape
        pixels_1CHW = scaled_pixels(tiles, shape.scale, self._device)
        patches_WHV = conv2d(pixels_1CHW, self._patch, stride=shape.patch)[0]
        x_PW = _by_squares(patches_WHV.permute(1, 2, 0), shape.merge)
        turn_P1D = self._turns(*patches_WHV.shape[1:])
        for layer in range(shape.layers):
            x_PW = self._read_layer(x_PW, turn_P1D, f"visual.blocks.{layer}.", watch)
        # The patches of a square stand one after another by now.
        joined_KW = self._normed(x_PW, "visual.merger.ln_q").view(-1, shape.width * shape.merge**2)
        inner_KW = gelu(self._mapped(joined_KW, "visual.merger.mlp.0"))
        return self._mapped(inner_KW, "visual.merger.mlp.2").cpu()

    def _mapped(self, x: Tensor, name: str) -> Tensor:
        """States through a linear map."""
        return linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _normed(self, x: Tensor, name: str) -> Tensor:
        """States through a norm."""
        weight = self._weights[f"{name}.weight"]
        return layer_norm(x, weight.shape, weight, self._weights[f"{name}.bias"], EPSILON)

    def _turns(self, rows: int, columns: int) -> Tensor:
        """Factors by which queries and keys of each patch turn, ``[patches, 1, head / 2]``: the first
        half of the pairs by its row, the second by its column."""
        shape = self.shape
        half = shape.width // shape.heads // 2
        # A frequency for each pair, the same ones for rows and for columns.
        inverse = BASE ** -(torch.arange(0, half, 2, dtype=torch.float64) / half)
        place_HV2 = torch.stack(
            torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1
        )
        place_P2 = _by_squares(place_HV2, shape.merge)
        angle_PD = (place_P2[:, :, None] * inverse).flatten(1)
        turn_PD = torch.polar(torch.ones_like(angle_PD), angle_PD).to(torch.complex64)
        return turn_PD[:, None].to(self._device)

    def _read_layer(
        self, x_PW: Tensor, turn_P1D: Tensor, at: str, watch: TowerWatch | None
    ) -> Tensor:
        """A layer: every patch of the image sees all of them."""
        heads = self.shape.heads
        qkv_P3HD = self._mapped(self._normed(x_PW, f"{at}norm1"), f"{at}attn.qkv").unflatten(
            -1, (3, heads, -1)
        )
        query, key, value = qkv_P3HD.unbind(1)
        if watch is not None:
            watch.note_layer(query.transpose(0, 1)[None], key.transpose(0, 1)[None])
        seen_HPD = scaled_dot_product_attention(
            turn_halves(query, turn_P1D).transpose(0, 1),
            turn_halves(key, turn_P1D).transpose(0, 1),
            value.transpose(0, 1),
        )
        # Attention, then the MLP; each adds to what went in.
        x_PW = x_PW + self._mapped(seen_HPD.transpose(0, 1).flatten(1), f"{at}attn.proj")
        inner = self._mapped(self._normed(x_PW, f"{at}norm2"), f"{at}mlp.fc1")
        return x_PW + self._mapped(ACTIVATIONS[self.shape.act](inner), f"{at}mlp.fc2")


def turn_halves(x_PHD: Tensor, turn_P1D: Tensor) -> Tensor:
    """Turn pairs of numbers of which one stands in each half of a head.

    Args:
        x_PHD: Queries or keys, ``[patches, heads, head]``.
        turn_P1D: Factors, ``[patches, 1, head / 2]``, complex.

    Returns:
        The same, turned.
    """
    turned = torch.complex(*x_PHD.chunk(2, -1)) * turn_P1D
    return torch.cat([turned.real, turned.imag], -1)


def _by_squares(x_HVW: Tensor, by: int) -> Tensor:
    """What stands in rows and columns, in the order of squares of so many a side: ``[H * V, ...]``."""
    rows, columns, *rest = x_HVW.shape
    # [row of squares, row within, column of squares, column within]
    squares = x_HVW.view(rows // by, by, columns // by, by, *rest).transpose(1, 2)
    return squares.reshape(rows * columns, *rest)
