"""Images from outside: files, bytes and data URLs, bounded before anybody decodes them, and what a
model makes of one.

Nothing here decodes (`image_decoding.py` does), so that a name of an image costs no start.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydec.base import edge
from polydec.base.errors import RequestError
from polydec.base.options import short_repr

MOST_BYTES = 8 << 20
"""Bytes of an image as a file has it."""


@dataclass(frozen=True)
class Image:
    """An image that a model reads: PNG, JPEG, WebP, BMP or GIF, of one frame.

    Attributes:
        data: Path of a file, or the bytes of one.
    """

    data: str | os.PathLike[str] | bytes

    def file_bytes(self) -> bytes:
        """The bytes of the file, undecoded. Raises RequestError where they cannot be had, or are too
        many."""
        data = self.data
        # A path is read here, so that the size is known before anything is decoded.
        if not isinstance(data, bytes):
            data = edge.read_bytes(Path(edge.path_text(data, "image")), MOST_BYTES)
        if not data:
            raise RequestError("image is empty: give a PNG, JPEG, WebP, BMP or GIF file")
        if len(data) > MOST_BYTES:
            raise RequestError(f"image has {len(data)} bytes: at most {MOST_BYTES} are legal")
        return data


@dataclass(frozen=True)
class StripShape:
    """How a model reads an image: as a strip of a fixed height, from left to right.

    Attributes:
        height: Rows of pixels; every image is made so high, its proportions kept. 4 to 256.
        stride: Columns from one position to the next. 1 to 256.
        window: Columns that a position sees, its own stride in their middle. `stride` to 512, and
            as much more than the stride as stands evenly on both sides.
        most: Positions of an image at most. 1 to 4096.
    """

    height: int
    stride: int
    window: int
    most: int


@dataclass(frozen=True)
class PixelStrip:
    """A decoded image. Equal pixels are equal sources, whatever files they came from.

    Its length is the number of positions that a model reads.

    Attributes:
        height: Rows.
        stride: Columns of a position.
        pixels: Greys row by row, 0 (ink) to 255 (paper); columns are a multiple of the stride.
    """

    height: int
    stride: int
    pixels: bytes

    def __len__(self) -> int:
        return len(self.pixels) // (self.height * self.stride)


@dataclass(frozen=True)
class DecodedImage:
    """An image that was decoded before its request is planned.

    Attributes:
        image: The image.
        content: What the model reads of it: a `PixelStrip`, or a `PlacedImage`.
        form: How the model reads an image that it was decoded for.
    """

    image: Image
    content: Any
    form: object


def is_image_part(part: object) -> bool:
    """Whether a part of a message's content is an image, in OpenAI's form."""
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def image_of_part(part: Mapping[str, Any], where: str) -> Image | DecodedImage:
    """The image of a part of a message's content, `{"type": "image_url", "image_url": {"url": …}}`.

    Args:
        part: The part.
        where: What sentences call it.

    Returns:
        The image.

    Raises:
        RequestError: It has no data URL. Nothing is ever fetched from an address.
    """
    held = part.get("image_url")
    # Whoever reads the request may have decoded it already.
    if isinstance(held, (Image, DecodedImage)):
        return held
    # OpenAI has an object with a url; its newer interface has the url alone.
    url = held.get("url") if isinstance(held, Mapping) else held
    if not isinstance(url, str):
        raise RequestError(
            f"{where}.image_url is {short_repr(held)}: it must hold a url, data:image/png;base64,…"
        )
    # What stands before the comma says the kind of the file, which its bytes tell better.
    head, comma, body = url.partition(",")
    if not head.startswith("data:"):
        raise RequestError(
            f"{where}.image_url has the url {short_repr(url[:80])}: addresses are not fetched, so give the image itself, "
            "data:image/png;base64,…"
        )
    if not comma or not head.endswith(";base64"):
        raise RequestError(
            f"{where}.image_url begins with {short_repr(head[:80])}: a data URL must begin data:image/png;base64,"
        )
    # Four characters hold three bytes: too long a text is not even decoded.
    if len(body) > MOST_BYTES // 3 * 4 + 4:
        raise RequestError(
            f"image has more than {MOST_BYTES} bytes, which is the most that is legal"
        )
    try:
        return Image(b64decode(body, validate=True))
    except (binascii.Error, ValueError):
        raise RequestError(f"{where}.image_url holds a data URL that is no base64") from None
