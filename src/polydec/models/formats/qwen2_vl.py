"""The layout of Qwen2-VL: a tower that reads an image of any size and turns its queries by rows and
columns, a merger that joins squares of patches, and a language model that knows where they stand.

Source: Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any
Resolution", arXiv 2409.12191.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge
from polydec.models.formats.fields import Count, Flag, Id, StrictFields
from polydec.models.formats.image_tiles import GridPlan
from polydec.models.formats.vision import (
    ACTS,
    PREPROCESSOR,
    Depth,
    Heads,
    PartedCheckpoint,
    PixelScale,
    ProcessorFields,
    Side,
    part_checkpoint,
    read_pixel_scale,
)

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_SPREAD = (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3
MOST_PIXELS = 1 << 24
"""Pixels that an image becomes at most."""
_LANGUAGE = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
"""What a config leaves out of its language model where it is as the first model's."""

_BEGINNINGS = {"model.language_model.": "model.", "model.": "model.", "lm_head.": "lm_head."}
_TOWER = {"model.visual.": "visual.", "visual.": "visual."}
"""How names of published files begin, newer and older ones, and how they begin here."""

Pixels = Annotated[int, Field(ge=1, le=MOST_PIXELS)]


class Qwen2VisionFields(StrictFields):
    """vision_config of Qwen2-VL: what is read of it."""

    depth: Depth = 32
    embed_dim: Count = 1280
    hidden_size: Count = 3584
    hidden_act: str = "quick_gelu"
    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 4
    num_heads: Heads = 16
    in_channels: Annotated[int, Field(ge=3, le=3)] = 3
    patch_size: Side = 14
    spatial_merge_size: Annotated[int, Field(ge=1, le=64)] = 2
    temporal_patch_size: Annotated[int, Field(ge=1, le=64)] = 2


class Qwen2VLFields(StrictFields):
    """config.json of Qwen2-VL: what is read of it. Older files have the language model's fields
    beside these."""

    vision_config: dict[str, Any]
    text_config: dict[str, Any] | None = None
    tie_word_embeddings: Flag = None
    image_token_id: Id


class PixelRangeFields(StrictFields):
    """How many pixels an image may become, from the least to the most."""

    shortest_edge: Pixels | None = None
    longest_edge: Pixels | None = None


class GridFields(StrictFields):
    """preprocessor_config.json of Qwen2-VL: what is read of it beside the scale of pixels."""

    do_resize: Flag = None
    size: PixelRangeFields | None = None
    min_pixels: Pixels | None = None
    max_pixels: Pixels | None = None
    patch_size: Side | None = None
    merge_size: Annotated[int, Field(ge=1, le=64)] | None = None
    resample: Annotated[int, Field(ge=0, le=5)] | None = None


@dataclass(frozen=True)
class Qwen2VLShape:
    """Tower and merger.

    Attributes:
        width: Size of the tower's states.
        layers: Number of layers.
        heads: Heads of attention.
        inner: Inner units of its MLPs.
        act: Activation of its MLPs.
        patch: Pixels of a side of a patch.
        frames: Frames of a patch; an image is shown in all of them.
        merge: So many patches a side become one.
        into: Size of the language model's embeddings.
        plan: How an image becomes a tile.
        scale: How pixels become numbers.
    """

    width: int
    layers: int
    heads: int
    inner: int
    act: str
    patch: int
    frames: int
    merge: int
    into: int
    plan: GridPlan
    scale: PixelScale

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors that are read, by their names."""
        W = self.width
        joined = W * self.merge**2
        maps = {"merger.mlp.0": (joined, joined), "merger.mlp.2": (self.into, joined)}
        norms = ["merger.ln_q"]
        for layer in range(self.layers):
            at = f"blocks.{layer}."
            maps |= {
                f"{at}attn.qkv": (3 * W, W),
                f"{at}attn.proj": (W, W),
                f"{at}mlp.fc1": (self.inner, W),
                f"{at}mlp.fc2": (W, self.inner),
            }
            norms += [f"{at}norm1", f"{at}norm2"]
        out: dict[str, tuple[int, ...]] = {
            "visual.patch_embed.proj.weight": (W, 3, self.frames, self.patch, self.patch)
        }
        for name, shape in maps.items():
            out[f"visual.{name}.weight"] = shape
            out[f"visual.{name}.bias"] = shape[:1]
        for name in norms:
            out[f"visual.{name}.weight"] = (W,)
            out[f"visual.{name}.bias"] = (W,)
        return out


def read_qwen2_vl(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], processor: Mapping[str, Any]
) -> PartedCheckpoint:
    """Read a checkpoint of the layout of Qwen2-VL.

    Names and shapes of tower and merger are compared before anything is read or made room for.

    Args:
        config: Content of the config.json.
        weights: The tensors by their published names.
        processor: Settings of its image processor; empty: there are none.

    Returns:
        Language model, tower and merger.

    Raises:
        FileError: A field is missing or out of its range, or the weights do not fit.
    """
    c = edge.validate_record(Qwen2VLFields, config, "config")
    text = _language_config(config if c.text_config is None else c.text_config)
    # One of both places says it.
    if c.tie_word_embeddings:
        text["tie_word_embeddings"] = True
    vision = edge.validate_record(Qwen2VisionFields, c.vision_config, "vision_config")
    if vision.hidden_act not in ACTS:
        raise FileError(
            f"vision_config: hidden_act is {vision.hidden_act!r:.60}: known are {', '.join(ACTS)}"
        )
    # Rows and columns turn a half of a head each, in pairs of numbers.
    if vision.embed_dim % (4 * vision.num_heads):
        raise FileError(
            f"vision_config: num_heads is {vision.num_heads}: heads of embed_dim, {vision.embed_dim}, must be a multiple "
            "of 4 wide"
        )
    scale = edge.validate_record(ProcessorFields, _without_size(processor), PREPROCESSOR)
    shape = Qwen2VLShape(
        vision.embed_dim,
        vision.depth,
        vision.num_heads,
        vision.embed_dim * vision.mlp_ratio,
        vision.hidden_act,
        vision.patch_size,
        vision.temporal_patch_size,
        vision.spatial_merge_size,
        text["hidden_size"],
        _grid_plan(edge.validate_record(GridFields, processor, PREPROCESSOR), vision),
        read_pixel_scale(scale, _MEAN, _SPREAD),
    )
    if c.image_token_id >= text["vocab_size"]:
        raise FileError(
            f"image_token_id is {c.image_token_id}: ids lie below vocab_size, {text['vocab_size']}"
        )
    # Of older files the tower's names begin as no others do; of newer ones as the language model's.
    language = {"model.visual.": "visual.", **_BEGINNINGS}
    return part_checkpoint(text, weights, shape, (_TOWER, language), c.image_token_id)


def _without_size(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without `size`, which here counts the pixels of an image and not those of a side."""
    return {name: value for name, value in processor.items() if name != "size"}


def _language_config(said: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the language model as one of Qwen2, whose rotary embedding has three parts."""
    text = {**_LANGUAGE, **said, "model_type": "qwen2"}
    # Of older and of newer files; one that says nothing of sections stays as it is.
    for name in ("rope_scaling", "rope_parameters"):
        rope = text.get(name)
        if not isinstance(rope, dict) or "mrope_section" not in rope:
            continue
        text["polydec_sections"] = rope["mrope_section"]
        rest = {key: value for key, value in rope.items() if key not in ("mrope_section", "type")}
        # It says how positions are taken; how they are scaled is said beside it, or nowhere.
        kind = rope.get("rope_type", rope.get("type"))
        rest["rope_type"] = "default" if kind in (None, "mrope") else kind
        text[name] = rest
    text.setdefault("polydec_sections", [16, 24, 24])
    return text


def _grid_plan(c: GridFields, vision: Qwen2VisionFields) -> GridPlan:
    """How the processor makes a tile. Raises FileError where that is no tile of this tower."""
    for name, said, own in (
        ("patch_size", c.patch_size, vision.patch_size),
        ("merge_size", c.merge_size, vision.spatial_merge_size),
    ):
        if said not in (None, own):
            raise FileError(f"{PREPROCESSOR}: {name} is {said}: the vision tower has {own}")
    # An image of half a patch has no place in the tower.
    if c.do_resize is False:
        raise FileError(
            f"{PREPROCESSOR}: do_resize is false: images are made a whole number of patches here"
        )
    # Older names count first, as they do in processors that know both.
    size = c.size or PixelRangeFields()
    least = c.min_pixels or size.shortest_edge or 56 * 56
    most = c.max_pixels or size.longest_edge or 28 * 28 * 1280
    # Else an image could be made neither larger nor smaller.
    if least > most:
        raise FileError(
            f"{PREPROCESSOR}: an image becomes at least {least} and at most {most} pixels: the first must not be larger"
        )
    factor = vision.patch_size * vision.spatial_merge_size
    resample = _BICUBIC if c.resample is None else c.resample
    return GridPlan(factor, least, most, resample)
