"""Sizes of a masked-diffusion network that encodes tokens and decodes gaps apart, as its config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from polydec.base.edge import validate_record
from polydec.base.errors import FileError
from polydec.base.outside_records import StrictRecord

MODEL_TYPE = "polydec_enat"

Size = Annotated[int, Field(ge=1, le=1 << 16)]
Layers = Annotated[int, Field(ge=0, le=256)]


@dataclass(frozen=True)
class EnatShape:
    """Sizes of such a network.

    Attributes:
        vocab: Token ids, marks included.
        written: Ids that may be written; they stand first.
        width: Size of states.
        heads: Heads of attention, a divisor of the width.
        inner: Units of the MLPs.
        encoder: Layers that tokens pass.
        decoder: Layers that gaps pass.
        context: Positions of a canvas.
    """

    vocab: int
    written: int
    width: int
    heads: int
    inner: int
    encoder: int
    decoder: int
    context: int


class EnatConfigFields(StrictRecord):
    """What config.json must say."""

    vocab_size: Size
    written: Size
    width: Size
    heads: Annotated[int, Field(ge=1, le=1 << 12)]
    inner: Size
    encoder: Layers
    decoder: Annotated[int, Field(ge=1, le=256)]
    context: Annotated[int, Field(ge=2, le=1 << 20)]
    polydec_mask: Annotated[int, Field(ge=0)]


def enat_config_content(shape: EnatShape) -> dict[str, Any]:
    """The content of config.json of such a network, but for its marks."""
    return {
        "architectures": ["PolydecEnat"],
        "model_type": MODEL_TYPE,
        "vocab_size": shape.vocab,
        "written": shape.written,
        "width": shape.width,
        "heads": shape.heads,
        "inner": shape.inner,
        "encoder": shape.encoder,
        "decoder": shape.decoder,
        "context": shape.context,
    }


def read_enat_config(config: Mapping[str, Any]) -> EnatShape:
    """Read the content of a config.json.

    Args:
        config: The content, with the id of a gap.

    Returns:
        The sizes.

    Raises:
        FileError: It is not that of such a network.
    """
    f = validate_record(EnatConfigFields, dict(config), "config.json of an ENAT model")
    # Each head has an equal part of the width.
    if f.width % f.heads:
        raise FileError(
            f"config.json: width is {f.width} and heads {f.heads}: heads must divide it"
        )
    if f.written > f.vocab_size:
        raise FileError(
            f"config.json: written is {f.written}: the vocabulary has {f.vocab_size} tokens"
        )
    # A gap is never written, so it stands behind what is.
    if not f.written <= f.polydec_mask < f.vocab_size:
        raise FileError(
            f"config.json: polydec_mask is {f.polydec_mask}: it must lie in {f.written} to {f.vocab_size - 1}"
        )
    return EnatShape(
        f.vocab_size, f.written, f.width, f.heads, f.inner, f.encoder, f.decoder, f.context
    )
