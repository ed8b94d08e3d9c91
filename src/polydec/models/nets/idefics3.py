"""The layout of Idefics3 and SmolVLM in torch: a SigLIP tower over tiles, whose patches are shuffled into
fewer, wider ones and projected to the language model's embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import conv2d, layer_norm, linear

from polydec.models.formats.idefics3 import Idefics3Shape
from polydec.models.formats.image_tiles import ImagePlan, ImageTiles
from polydec.models.nets.tile_evidence import TileEvidence, TowerWatch
from polydec.models.nets.vit import scaled_pixels, vit_layer

AROUND = "<fake_token_around_image>"
WHOLE = "<global-img>"
"""Texts that stand before the vectors of a tile, the second before those of the whole image."""


class Idefics3Tower:
    """Tower and connector.

    Args:
        shape: What they are.
        weights: Their tensors by name, which are read now, as float32.
        device: Where they compute.
    """

    def __init__(self, shape: Idefics3Shape, weights: Mapping[str, Tensor], device: str) -> None:
        self.shape = shape
        self._device = torch.device(device)
        self._weights = {
            name: weights[name].float().to(self._device) for name in shape.tensor_shapes
        }
        side = position_buckets(shape.vit.grid_side)
        # A table of positions by row and column, laid flat.
        self._places_P = (side[:, None] * shape.vit.grid_side + side).flatten().to(self._device)

    @property
    def tile_plan(self) -> ImagePlan:
        """How an image becomes the tiles that it reads."""
        return self.shape.plan

    @property
    def appended_count(self) -> int:
        """No vector stands behind those of the patches."""
        return 0

    def place_of(self, tiles: ImageTiles) -> tuple[str | int, ...]:
        """What stands in a prompt in the place of an image: texts, and numbers of its vectors."""
        each = self.shape.tile_vectors
        out = list[str | int]()
        for row in range(1, tiles.rows + 1):
            for column in range(1, tiles.columns + 1):
                out += [f"{AROUND}<row_{row}_col_{column}>", each]
            out.append("\n")
        # A line of its own behind the rows, where there are some.
        before = "\n" if tiles.rows else ""
        return (*out, f"{before}{AROUND}{WHOLE}", each, AROUND)

    def grid_of(self, tiles: ImageTiles) -> None:
        """The language model does not tell rows and columns."""

    def image_vectors(self, tiles: ImageTiles) -> Tensor:
        """The vectors of an image, tile by tile.

        Args:
            tiles: The image.

        Returns:
            The vectors, ``[k, width]``, float32.
        """
        pixels_TCHW = scaled_pixels(tiles, self.shape.scale, self._device)
        # One tile at a time: memory does not grow with the image.
        return torch.cat([self._read_tile(tile, None) for tile in pixels_TCHW.split(1)]).cpu()

    def watched_vectors(self, tiles: ImageTiles) -> tuple[Tensor, list[TileEvidence]]:
        """The vectors of an image, and of each tile what the tower's layers look at."""
        pixels_TCHW = scaled_pixels(tiles, self.shape.scale, self._device)
        vectors = list[Tensor]()
        found = list[TileEvidence]()
        for tile in pixels_TCHW.split(1):
            watch = TowerWatch(has_class=False)
            vectors.append(self._read_tile(tile, watch))
            found.append(self._joined_evidence(watch))
        # The last tile is the whole image, where others are parts of it.
        if len(found) > 1:
            found[-1] = replace(found[-1], is_overview=True)
        return torch.cat(vectors).cpu(), found

    def _joined_evidence(self, watch: TowerWatch) -> TileEvidence:
        """What was noted of the patches of a tile, for the squares that they are joined in."""
        side = self.shape.vit.grid_side
        keys_1KW = shuffle_patches(watch.keys_TPW, side, self.shape.shuffle)
        # [layers, patches, 1] becomes [layers, squares, patches of one].
        looked_LKS = shuffle_patches(watch.looked_LTP[:, 0, :, None], side, self.shape.shuffle)
        return TileEvidence(keys_1KW[0].cpu(), looked_LKS.mean(-1).cpu())

    @torch.inference_mode()
    def _read_tile(self, pixels_TCHW: Tensor, watch: TowerWatch | None) -> Tensor:
        """The vectors of one tile, ``[k, width]``; watch: notes what layers look at."""
        w = self._weights
        vit = self.shape.vit
        at = "vision_model."
        patches = conv2d(
            pixels_TCHW,
            w[f"{at}embeddings.patch_embedding.weight"],
            w[f"{at}embeddings.patch_embedding.bias"],
            stride=vit.patch,
        )
        x_TPW = patches.flatten(2).transpose(1, 2)
        x_TPW = x_TPW + w[f"{at}embeddings.position_embedding.weight"][self._places_P]
        for layer in range(vit.layers):
            x_TPW = vit_layer(x_TPW, w, f"{at}encoder.layers.{layer}.", vit, watch)
        own = (w[f"{at}post_layernorm.weight"], w[f"{at}post_layernorm.bias"])
        x_TPW = layer_norm(x_TPW, (vit.width,), *own, vit.eps)
        joined_TKW = shuffle_patches(x_TPW, vit.grid_side, self.shape.shuffle)
        return linear(joined_TKW, w["connector.modality_projection.proj.weight"])[0]


def shuffle_patches(x_TPW: Tensor, side: int, by: int) -> Tensor:
    """Join squares of patches: their states stand side by side, row by row.

    Args:
        x_TPW: States of the patches, row by row, ``[tiles, side * side, W]``.
        side: Patches of a side.
        by: Patches of a side of a square, which divide those.

    Returns:
        The squares row by row, ``[tiles, (side / by)**2, W * by**2]``.
    """
    # [tile, row of squares, row within, column of squares, column within, state]
    n = side // by
    squares = x_TPW.view(len(x_TPW), n, by, n, by, -1).permute(0, 1, 3, 2, 4, 5)
    return squares.reshape(len(x_TPW), n * n, -1)


def position_buckets(side: int) -> Tensor:
    """The place in the table of positions of each patch of a side.

    Places are found among fractions of the side, in float32: rounding puts some patches one place
    before their own, and the tower was trained so.

    Args:
        side: Patches of a side.

    Returns:
        The places, ``[side]``.
    """
    # As tensors of float32, whose rounding is part of the rule.
    step = 1 / torch.tensor(float(side))
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    fractions = (torch.arange(side, dtype=torch.float32) * step).clamp(max=1.0 - 1e-6)
    return torch.bucketize(fractions, bounds, right=True)
