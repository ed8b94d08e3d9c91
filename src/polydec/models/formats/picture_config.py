"""What a checkpoint says of the pictures that its tokens are, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polydec.base.edge import validate_record
from polydec.base.errors import FileError
from polydec.models.formats.fields import shape_of

if TYPE_CHECKING:
    from polydec.models.formats.picture_fields import PictureFields

FIELD = "polydec_picture"
"""Of config.json: that answers of the model are pictures, and of what size."""

TILES = "picture.tiles"
"""The tensor beside the weights that says what each token draws."""

MOST_PIXELS = 2048
"""Pixels of a side of a picture at most."""


def read_picture_config(
    config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[PictureFields, Tensor] | None:
    """Read what a checkpoint says of its pictures.

    Args:
        config: Content of the config.json.
        weights: The tensors by name.

    Returns:
        The fields, and what each token draws, uint8, shape ``[K, P, P, C]``: K tokens, P pixels a
        side, C values a pixel, 1 (grey) or 3 (red, green, blue). None: the model writes text.

    Raises:
        FileError: A field is missing or out of its range, or the tensor does not fit.
    """
    stated = config.get(FIELD)
    if stated is None:
        return None
    # Every start comes by here, and a class that checks fields takes milliseconds to make.
    from polydec.models.formats.picture_fields import PictureFields

    if not isinstance(stated, dict):
        raise FileError(f"{FIELD} is no object: it must have height, width and classes")
    fields = validate_record(PictureFields, stated, f"{FIELD} of config.json")
    words = [*fields.classes, *([fields.dropped] if fields.dropped is not None else [])]
    if len(set(words)) < len(words):
        raise FileError(f"{FIELD}: classes and dropped name a word twice")
    for name, side in (("height", fields.height), ("width", fields.width)):
        if fields.patch is not None and side % fields.patch:
            raise FileError(f"{FIELD}: {name} is {side}, no multiple of patch ({fields.patch})")
    # The shape is known from the header alone, so a wrong one is refused before it is read.
    shape = shape_of(weights, TILES)
    if len(shape) != 4 or min(shape) < 1 or shape[1] != shape[2] or shape[3] not in (1, 3):
        raise FileError(
            f"{TILES} has shape {shape}: it must be tokens, pixels, pixels, and 1 or 3 values a pixel"
        )
    for name, side in (("height", fields.height), ("width", fields.width)):
        if side * shape[1] > MOST_PIXELS:
            raise FileError(
                f"{FIELD}: {name} is {side}, and a token draws {shape[1]} pixels a side: a picture has "
                f"at most {MOST_PIXELS} pixels a side"
            )
    end = fields.row_end
    size = config.get("vocab_size")
    if end is not None and (end < shape[0] or not isinstance(size, int) or end >= size):
        raise FileError(
            f"{FIELD}: row_end is {end}: it must be a token that draws nothing, {shape[0]} or above, of the vocabulary"
        )
    if end is not None and fields.patch is not None:
        raise FileError(f"{FIELD}: row_end is {end} beside patch: squares have no rows that end")
    tiles_KPPC = weights[TILES]
    if tiles_KPPC.dtype != torch.uint8:
        raise FileError(f"{TILES} is {tiles_KPPC.dtype}: 8-bit whole numbers are expected")
    return fields, tiles_KPPC
