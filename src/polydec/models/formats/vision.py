"""What vision-language checkpoints of several layouts say alike: their towers, their processors and
their language models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import Field
from torch import Tensor

from polydec.base.errors import FileError
from polydec.models.formats import edge, fields
from polydec.models.formats.architectures import FAMILIES
from polydec.models.formats.fields import Count, Flag, Id, StrictFields
from polydec.models.formats.tensor_files import RenamedWeights

PREPROCESSOR = "preprocessor_config.json"
"""What messages call the settings of an image processor."""
ACTS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")
"""Activations that towers and projectors have."""

Side = Annotated[int, Field(ge=1, le=4096)]
Heads = Annotated[int, Field(ge=1, le=1024)]
Depth = Annotated[int, Field(ge=1, le=1024)]
Epsilon = Annotated[float, Field(ge=0, le=1)]
Shade = Annotated[float, Field(ge=-1e6, le=1e6)]
Spread = Annotated[float, Field(gt=0, le=1e6)]


class VitFields(StrictFields):
    """vision_config of CLIP and SigLIP: what is read of it."""

    model_type: str | None = None
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Depth
    num_attention_heads: Heads
    num_channels: Annotated[int, Field(ge=3, le=3)] = 3
    image_size: Side
    patch_size: Side
    hidden_act: str
    layer_norm_eps: Epsilon


class SizeFields(StrictFields):
    """A size in the settings of an image processor."""

    height: Side | None = None
    width: Side | None = None
    shortest_edge: Side | None = None
    longest_edge: Annotated[int, Field(ge=1, le=1 << 31)] | None = None


class ProcessorFields(StrictFields):
    """preprocessor_config.json: what is read of it."""

    do_resize: Flag = None
    do_center_crop: Flag = None
    do_rescale: Flag = None
    do_normalize: Flag = None
    do_pad: Flag = None
    size: Side | SizeFields | None = None
    crop_size: Side | SizeFields | None = None
    resample: Annotated[int, Field(ge=0, le=5)] | None = None
    rescale_factor: Annotated[float, Field(ge=0, le=1e6)] = 1 / 255
    image_mean: Annotated[list[Shade], Field(min_length=3, max_length=3)] | None = None
    image_std: Annotated[list[Spread], Field(min_length=3, max_length=3)] | None = None


class VisionTextFields(StrictFields):
    """What a vision-language config says beside its parts."""

    text_config: dict[str, Any]
    vision_config: dict[str, Any]
    tie_word_embeddings: Flag = None
    image_token_id: Id | None = None
    image_token_index: Id | None = None


_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
}
"""By model type what a text_config leaves out where it is as in the first model of its kind."""


@dataclass(frozen=True)
class VitShape:
    """Sizes of a vision transformer.

    Attributes:
        width: Size of its states.
        layers: Number of layers.
        heads: Heads of attention.
        inner: Inner units of its MLPs.
        patch: Pixels of a side of a patch.
        side: Pixels of a side of an image.
        act: Activation of its MLPs.
        eps: Added to the norms' variances.
    """

    width: int
    layers: int
    heads: int
    inner: int
    patch: int
    side: int
    act: str
    eps: float

    @property
    def grid_side(self) -> int:
        """Patches of a side."""
        return self.side // self.patch

    def layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of a layer, by their names within it."""
        W = self.width
        maps = {
            **dict.fromkeys([f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")], (W, W)),
            "mlp.fc1": (self.inner, W),
            "mlp.fc2": (W, self.inner),
        }
        at = f"encoder.layers.{layer}."
        out = dict[str, tuple[int, ...]]()
        for name, shape in maps.items():
            out[f"{at}{name}.weight"] = shape
            out[f"{at}{name}.bias"] = shape[:1]
        for name in ("layer_norm1", "layer_norm2"):
            out[f"{at}{name}.weight"] = (W,)
            out[f"{at}{name}.bias"] = (W,)
        return out


@dataclass(frozen=True)
class PixelScale:
    """How pixels become numbers: times a factor, less a mean, over a spread.

    Attributes:
        factor: What values of 0 to 255 are multiplied by.
        mean: Of red, green and blue.
        spread: The same.
    """

    factor: float
    mean: tuple[float, float, float]
    spread: tuple[float, float, float]


class TowerShape(Protocol):
    """Sizes of tower and projector, of any layout."""

    @property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors that are read, by their names."""
        ...


@dataclass(frozen=True)
class PartedCheckpoint:
    """A vision-language checkpoint in its two parts.

    Attributes:
        config: Of the language model.
        weights: Of the language model, under the names of the skeleton.
        shape: Of tower and projector, of the layout's own type.
        tower: Tensors of tower and projector, under the names of the layout.
        image_token: The id that stands for an image in a prompt.
        names: How names of the language model's tensors begin in the file, and how they begin here.
    """

    config: Mapping[str, Any]
    weights: RenamedWeights
    shape: Any
    tower: Mapping[str, Tensor]
    image_token: int
    names: Mapping[str, str]


def read_vit_shape(
    config: Mapping[str, Any], kinds: tuple[str, ...], unsaid: Mapping[str, Any]
) -> VitShape:
    """Read the vision_config of a vision transformer.

    Args:
        config: Its content.
        kinds: The model types that the layout has.
        unsaid: Fields that have these values where the config does not say them.

    Returns:
        The sizes.

    Raises:
        FileError: A field is missing or out of its range, or the tower is of another kind.
    """
    c = edge.validate_record(VitFields, {**unsaid, **config}, "vision_config")
    if c.model_type not in (None, *kinds):
        raise FileError(
            f"vision_config: model_type is {c.model_type!r:.60}: of this layout towers {' and '.join(kinds)} are run"
        )
    # Names of activations are not checked by the type of their field.
    if c.hidden_act not in ACTS:
        raise FileError(
            f"vision_config: hidden_act is {c.hidden_act!r:.60}: known are {', '.join(ACTS)}"
        )
    # A head that does not divide the states would be cut silently.
    if c.hidden_size % c.num_attention_heads:
        raise FileError(
            f"vision_config: num_attention_heads is {c.num_attention_heads}: it must divide hidden_size, {c.hidden_size}"
        )
    # Else an image would have no patch at all.
    if c.patch_size > c.image_size:
        raise FileError(
            f"vision_config: patch_size is {c.patch_size}: it must not exceed image_size, {c.image_size}"
        )
    return VitShape(
        c.hidden_size,
        c.num_hidden_layers,
        c.num_attention_heads,
        c.intermediate_size,
        c.patch_size,
        c.image_size,
        c.hidden_act,
        c.layer_norm_eps,
    )


def read_text_config(c: VisionTextFields) -> dict[str, Any]:
    """The config of the language model of a vision-language checkpoint.

    Args:
        c: What the checkpoint's config says.

    Returns:
        The config.json of the language model alone.

    Raises:
        FileError: It is of a family that the skeleton does not run.
    """
    kind = c.text_config.get("model_type", "llama")
    if kind not in FAMILIES:
        raise FileError(
            f"text_config: model_type is {kind!r:.60}: behind a vision tower {', '.join(FAMILIES)} are run"
        )
    # What the config says stands; the rest is as in the first model of the kind.
    text = {**_UNSAID.get(kind, {}), **c.text_config, "model_type": kind}
    # One of both places says it.
    if c.tie_word_embeddings:
        text["tie_word_embeddings"] = True
    return text


def image_token_of(c: VisionTextFields, size: Any) -> int:
    """The id that stands for an image.

    Args:
        c: What the checkpoint's config says, which has two names for it.
        size: vocab_size of the language model.

    Returns:
        The id.

    Raises:
        FileError: It is not said, or lies outside the vocabulary.
    """
    # Older files have the first name, newer ones the second.
    token = c.image_token_index if c.image_token_id is None else c.image_token_id
    if token is None:
        raise FileError("config lacks image_token_id: it says which token stands for an image")
    if not isinstance(size, int) or token >= size:
        raise FileError(f"image_token_id is {token}: ids lie below vocab_size, {size!r:.40}")
    return token


def read_pixel_scale(
    c: ProcessorFields, mean: tuple[float, float, float], spread: tuple[float, float, float]
) -> PixelScale:
    """How a processor makes numbers of pixels.

    Args:
        c: Its settings.
        mean: Where they say no mean.
        spread: Where they say no spread.

    Returns:
        The scale.
    """
    factor = 1.0
    if c.do_rescale is not False:
        factor = c.rescale_factor
    # Not to be normalised is to lose no mean and keep the spread.
    if c.do_normalize is False:
        return PixelScale(factor, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    said_mean = c.image_mean or mean
    said_spread = c.image_std or spread
    return PixelScale(
        factor,
        (said_mean[0], said_mean[1], said_mean[2]),
        (said_spread[0], said_spread[1], said_spread[2]),
    )


def rename_beginnings(
    weights: Mapping[str, Tensor], beginnings: Mapping[str, str]
) -> RenamedWeights:
    """Tensors whose names begin otherwise.

    Args:
        weights: By the names of the file.
        beginnings: By a beginning of the file's names the one that takes its place; the first that
            fits counts, and tensors that none fits are left out.

    Returns:
        The tensors.
    """
    names = dict[str, str]()
    for name in weights:
        # Longer beginnings stand before shorter ones, so the first is the right one.
        old = next((old for old in beginnings if name.startswith(old)), None)
        if old is not None:
            names[beginnings[old] + name[len(old) :]] = name
    return RenamedWeights(weights, names)


def part_checkpoint(
    text: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    shape: TowerShape,
    names: tuple[Mapping[str, str], Mapping[str, str]],
    image_token: int,
) -> PartedCheckpoint:
    """Part the tensors of a vision-language checkpoint by how their names begin.

    Args:
        text: Config of the language model.
        weights: The tensors by their published names.
        shape: Of tower and projector.
        names: Beginnings of the tower's names, and of the language model's, as `rename_beginnings`
            takes them.
        image_token: The id that stands for an image in a prompt.

    Returns:
        The two parts.

    Raises:
        FileError: Names or shapes of the tower are not those that its sizes ask for.
    """
    tower_names, language_names = names
    # Compared by the headers alone: nothing of the weights has been read yet.
    tower = rename_beginnings(weights, tower_names)
    fields.require_shapes(tower, shape.tensor_shapes)
    language = rename_beginnings(weights, language_names)
    return PartedCheckpoint(text, language, shape, tower, image_token, language_names)
