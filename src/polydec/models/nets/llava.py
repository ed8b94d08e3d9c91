"""The LLaVA layout in torch: a CLIP tower whose states are projected to the language model's
embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import conv2d, layer_norm, linear

from polydec.models.formats.image_tiles import ImagePlan, ImageTiles
from polydec.models.formats.llava import LlavaShape
from polydec.models.nets.tile_evidence import TileEvidence, TowerWatch
from polydec.models.nets.vit import ACTIVATIONS, scaled_pixels, vit_layer


class LlavaTower:
    """Tower and projector.

    Args:
        shape: What they are.
        weights: Their tensors by name, which are read now, as float32.
        device: Where they compute.
    """

    def __init__(self, shape: LlavaShape, weights: Mapping[str, Tensor], device: str) -> None:
        self.shape = shape
        self._device = torch.device(device)
        self._weights = {
            name: weights[name].float().to(self._device) for name in shape.tensor_shapes
        }

    @property
    def tile_plan(self) -> ImagePlan:
        """How an image becomes the tiles that it reads."""
        return self.shape.plan

    def place_of(self, tiles: ImageTiles) -> tuple[str | int, ...]:
        """What stands in a prompt in the place of an image: texts, and numbers of its vectors."""
        return (tiles.tile_count * self.shape.vector_count,)

    def grid_of(self, tiles: ImageTiles) -> None:
        """The language model does not tell rows and columns."""

    def image_vectors(self, tiles: ImageTiles) -> Tensor:
        """The vectors of an image.

        Args:
            tiles: The image.

        Returns:
            The vectors, ``[k, width]``, float32.
        """
        return self._read_image(tiles, None)

    def watched_vectors(self, tiles: ImageTiles) -> tuple[Tensor, list[TileEvidence]]:
        """The vectors of an image, and of each tile what the tower's layers look at."""
        watch = TowerWatch(has_class=True)
        vectors_KD = self._read_image(tiles, watch)
        # Vectors of patches alone, or of the class token too.
        first = int(self.shape.drop)
        # A tile that is read by itself is compared with itself alone.
        keys_TPW = watch.keys_TPW[:, first:].cpu()
        looked_LTP = watch.looked_LTP[:, :, first:].cpu()
        return vectors_KD, [
            TileEvidence(keys_PW, looked_LTP[:, at]) for at, keys_PW in enumerate(keys_TPW)
        ]

    @torch.inference_mode()
    def _read_image(self, tiles: ImageTiles, watch: TowerWatch | None) -> Tensor:
        """The vectors of an image; watch: notes what layers look at."""
        w = self._weights
        vit = self.shape.vit
        at = "vision_tower."
        pixels_TCHW = scaled_pixels(tiles, self.shape.scale, self._device)
        patches = conv2d(pixels_TCHW, w[f"{at}embeddings.patch_embedding.weight"], stride=vit.patch)
        first_TPW = w[f"{at}embeddings.class_embedding"].expand(len(patches), 1, -1)
        # The class token stands before the patches, which go row by row.
        x_TPW = torch.cat([first_TPW, patches.flatten(2).transpose(1, 2)], 1)
        x_TPW = x_TPW + w[f"{at}embeddings.position_embedding.weight"]
        own = (w[f"{at}pre_layrnorm.weight"], w[f"{at}pre_layrnorm.bias"])
        x_TPW = layer_norm(x_TPW, (vit.width,), *own, vit.eps)
        # States before the first layer count as those behind none.
        states = [x_TPW]
        for layer in range(max(self.shape.behind)):
            states.append(vit_layer(states[-1], w, f"{at}encoder.layers.{layer}.", vit, watch))
        taken_TPW = torch.cat([states[behind] for behind in self.shape.behind], -1)
        # It stands first.
        if self.shape.drop:
            taken_TPW = taken_TPW[:, 1:]
        # The projector: two layers with an activation between them.
        inner = linear(taken_TPW, w["projector.linear_1.weight"], w.get("projector.linear_1.bias"))
        out = linear(
            ACTIVATIONS[self.shape.act](inner),
            w["projector.linear_2.weight"],
            w.get("projector.linear_2.bias"),
        )
        return out.flatten(0, 1).cpu()
