"""The LLaVA layout: a CLIP tower, a projector of two layers, and a language model that reads the
patches of an image in the place of a token.

Source: Liu et al. 2023, "Visual Instruction Tuning", arXiv 2304.08485; the two-layer projector,
Liu et al. 2023, arXiv 2310.03744.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge
from polydec.models.formats.image_tiles import CropPlan
from polydec.models.formats.vision import (
    ACTS,
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

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_SPREAD = (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3
_CLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""What a vision_config leaves out where it is as CLIP's."""

_BEGINNINGS = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}
_TOWER = {
    f"{before}{old}": new
    for before in ("model.", "")
    for old, new in (
        ("vision_tower.vision_model.", "vision_tower."),
        ("vision_tower.", "vision_tower."),
        ("multi_modal_projector.", "projector."),
    )
}
"""How names of published files begin, older and newer ones, and how they begin here."""

Layer = Annotated[int, Field(ge=-1025, le=1024)]


class LlavaFields(VisionTextFields):
    """config.json of the LLaVA layout: what is read of it."""

    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: Literal["default", "full"] = "default"
    vision_feature_layer: Layer | Annotated[list[Layer], Field(min_length=1, max_length=64)] = -2
    multimodal_projector_bias: bool = True


@dataclass(frozen=True)
class LlavaShape:
    """Tower and projector.

    Attributes:
        vit: Sizes of the tower.
        behind: Behind how many layers the states are taken that the projector reads, side by side.
        drop: Whether the state of the class token is left out.
        act: Activation between the projector's layers.
        into: Size of the language model's embeddings.
        biased: Whether the projector's layers have biases.
        plan: How an image becomes a tile.
        scale: How pixels become numbers.
    """

    vit: VitShape
    behind: tuple[int, ...]
    drop: bool
    act: str
    into: int
    biased: bool
    plan: CropPlan
    scale: PixelScale

    @property
    def vector_count(self) -> int:
        """How many vectors an image becomes."""
        # One for each patch, and one for the class token where that stays.
        return self.vit.grid_side**2 + (not self.drop)

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors that are read, by their names."""
        vit = self.vit
        W = vit.width
        own: dict[str, tuple[int, ...]] = {
            "embeddings.class_embedding": (W,),
            "embeddings.patch_embedding.weight": (W, 3, vit.patch, vit.patch),
            "embeddings.position_embedding.weight": (vit.grid_side**2 + 1, W),
            "pre_layrnorm.weight": (W,),
            "pre_layrnorm.bias": (W,),
        }
        # Layers behind the last state that is taken are never run.
        for layer in range(max(self.behind)):
            own |= vit.layer_shapes(layer)
        out = {f"vision_tower.{name}": shape for name, shape in own.items()}
        # States of several layers stand side by side.
        out["projector.linear_1.weight"] = (self.into, W * len(self.behind))
        out["projector.linear_2.weight"] = (self.into, self.into)
        if self.biased:
            out["projector.linear_1.bias"] = (self.into,)
            out["projector.linear_2.bias"] = (self.into,)
        return out


def read_llava(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], processor: Mapping[str, Any]
) -> PartedCheckpoint:
    """Read a checkpoint of the LLaVA layout.

    Names and shapes of tower and projector are compared before anything is read or made room for.

    Args:
        config: Content of the config.json.
        weights: The tensors by their published names.
        processor: Settings of its image processor; empty: there are none.

    Returns:
        Language model, tower and projector.

    Raises:
        FileError: A field is missing or out of its range, or the weights do not fit.
    """
    c = edge.validate_record(LlavaFields, config, "config")
    text = read_text_config(c)
    vit = read_vit_shape(c.vision_config, ("clip_vision_model",), _CLIP)
    # What the tower computes is known now; of the projector the activation is left.
    if c.projector_hidden_act not in ACTS:
        raise FileError(
            f"projector_hidden_act is {c.projector_hidden_act!r:.60}: known are {', '.join(ACTS)}"
        )
    settings = edge.validate_record(ProcessorFields, processor, PREPROCESSOR)
    shape = LlavaShape(
        vit,
        _layers_taken(c.vision_feature_layer, vit.layers),
        c.vision_feature_select_strategy == "default",
        c.projector_hidden_act,
        text["hidden_size"],
        c.multimodal_projector_bias,
        _crop_plan(settings, vit.side),
        read_pixel_scale(settings, _MEAN, _SPREAD),
    )
    token = image_token_of(c, text["vocab_size"])
    return part_checkpoint(text, weights, shape, (_TOWER, _BEGINNINGS), token)


def _layers_taken(said: int | list[int], layers: int) -> tuple[int, ...]:
    """Behind how many layers states are taken; negative numbers count from the end, where -1 is the
    last layer. Raises FileError where there is no such layer."""
    taken = said if isinstance(said, list) else [said]
    for layer in taken:
        if not -layers - 1 <= layer <= layers:
            raise FileError(
                f"vision_feature_layer is {layer}: it must lie in {-layers - 1} to {layers}, as the tower has "
                f"{layers} layers"
            )
    return tuple(layer if layer >= 0 else layers + 1 + layer for layer in taken)


def _crop_plan(c: ProcessorFields, side: int) -> CropPlan:
    """How CLIP's processor makes a tile. Raises FileError where that is no tile of this tower."""
    if c.do_pad:
        raise FileError(
            f"{PREPROCESSOR}: do_pad is true: images are cropped and never filled up here"
        )
    short = None
    size = None
    if c.do_resize is not False:
        short, size = _resized(c.size, side)
    crop = None
    if c.do_center_crop is not False:
        crop = _both_sides(c.crop_size) or (side, side)
    # Without a crop only a size of both sides makes all images equal.
    if (crop or size) != (side, side):
        raise FileError(
            f"{PREPROCESSOR}: images become {crop or size or 'of any size'}: the vision tower reads {(side, side)}"
        )
    resample = _BICUBIC if c.resample is None else c.resample
    return CropPlan(short, size, crop, resample)


def _resized(said: int | SizeFields | None, side: int) -> tuple[int | None, tuple[int, int] | None]:
    """Pixels of the shorter side, or of both sides."""
    if said is None:
        return side, None
    # A number alone is an older form of the shorter side.
    if isinstance(said, int):
        return said, None
    if said.shortest_edge is not None:
        return said.shortest_edge, None
    return None, _both_sides(said)


def _both_sides(said: int | SizeFields | None) -> tuple[int, int] | None:
    """Height and width of a size; None: it does not say both."""
    # A number alone is an older form of a square.
    if isinstance(said, int):
        return said, said
    if said is None or said.height is None or said.width is None:
        return None
    return said.height, said.width
