"""The layout of Idefics3 and SmolVLM: a SigLIP tower that reads an image in tiles, and a connector that
shuffles the patches of a tile into fewer, wider ones.

Source: Laurençon et al. 2024, "Building and better understanding vision-language models", arXiv
2408.12637; Marafioti et al. 2025, "SmolVLM", arXiv 2504.05299.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge
from polydec.models.formats.fields import Flag
from polydec.models.formats.image_tiles import SplitPlan
from polydec.models.formats.vision import (
    PREPROCESSOR,
    PartedCheckpoint,
    PixelScale,
    ProcessorFields,
    SizeFields,
    VisionTextFields,
    VitShape,
    image_token_of,
    part_checkpoint,
    read_pixel_scale,
    read_text_config,
    read_vit_shape,
)

_HALF = (0.5, 0.5, 0.5)
_LANCZOS = 1
_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""What a vision_config leaves out where it is as the first model's."""
KINDS = ("idefics3_vision", "idefics3", "smolvlm_vision", "smolvlm")
"""What published files call the tower."""

_BEGINNINGS = {"model.text_model.": "model.", "lm_head.": "lm_head."}
_TOWER = {"model.vision_model.": "vision_model.", "model.connector.": "connector."}
"""How names of published files begin, and how they begin here."""


class Idefics3Fields(VisionTextFields):
    """config.json of this layout: what is read of it."""

    scale_factor: Annotated[int, Field(ge=1, le=64)] = 2


class SplitFields(ProcessorFields):
    """preprocessor_config.json of this layout: what is read of it."""

    do_image_splitting: Flag = None
    max_image_size: SizeFields | None = None


@dataclass(frozen=True)
class Idefics3Shape:
    """Tower and connector.

    Attributes:
        vit: Sizes of the tower.
        shuffle: So many patches a side become one.
        into: Size of the language model's embeddings.
        plan: How an image becomes tiles.
        scale: How pixels become numbers.
    """

    vit: VitShape
    shuffle: int
    into: int
    plan: SplitPlan
    scale: PixelScale

    @property
    def tile_vectors(self) -> int:
        """How many vectors a tile becomes."""
        return (self.vit.grid_side // self.shuffle) ** 2

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors that are read, by their names."""
        vit = self.vit
        W = vit.width
        own: dict[str, tuple[int, ...]] = {
            "embeddings.patch_embedding.weight": (W, 3, vit.patch, vit.patch),
            "embeddings.patch_embedding.bias": (W,),
            "embeddings.position_embedding.weight": (vit.grid_side**2, W),
            "post_layernorm.weight": (W,),
            "post_layernorm.bias": (W,),
        }
        for layer in range(vit.layers):
            own |= vit.layer_shapes(layer)
        out = {f"vision_model.{name}": shape for name, shape in own.items()}
        out["connector.modality_projection.proj.weight"] = (self.into, W * self.shuffle**2)
        return out


def read_idefics3(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], processor: Mapping[str, Any]
) -> PartedCheckpoint:
    """Read a checkpoint of this layout.

    Names and shapes of tower and connector are compared before anything is read or made room for.

    Args:
        config: Content of the config.json.
        weights: The tensors by their published names.
        processor: Settings of its image processor; empty: there are none.

    Returns:
        Language model, tower and connector.

    Raises:
        FileError: A field is missing or out of its range, or the weights do not fit.
    """
    c = edge.validate_record(Idefics3Fields, config, "config")
    text = read_text_config(c)
    vit = read_vit_shape(c.vision_config, KINDS, _SIGLIP)
    # Patches are joined in squares, of which none may be left over.
    if vit.grid_side % c.scale_factor:
        raise FileError(
            f"scale_factor is {c.scale_factor}: it must divide the {vit.grid_side} patches of a side"
        )
    settings = edge.validate_record(SplitFields, processor, PREPROCESSOR)
    shape = Idefics3Shape(
        vit,
        c.scale_factor,
        text["hidden_size"],
        _split_plan(settings, vit.side),
        read_pixel_scale(settings, _HALF, _HALF),
    )
    token = image_token_of(c, text["vocab_size"])
    return part_checkpoint(text, weights, shape, (_TOWER, _BEGINNINGS), token)


def _split_plan(c: SplitFields, side: int) -> SplitPlan:
    """How the processor makes tiles. Raises FileError where they are no tiles of this tower."""
    tile = side
    if c.max_image_size is not None and c.max_image_size.longest_edge is not None:
        tile = c.max_image_size.longest_edge
    # The tower has a place for each patch of its own side.
    if tile != side:
        raise FileError(
            f"{PREPROCESSOR}: max_image_size is {tile}: the vision tower reads tiles of {side}"
        )
    longest = 4 * side
    if isinstance(c.size, SizeFields) and c.size.longest_edge is not None:
        longest = c.size.longest_edge
    resample = _LANCZOS if c.resample is None else c.resample
    return SplitPlan(
        None if c.do_resize is False else longest,
        c.do_image_splitting is not False,
        tile,
        resample,
    )
