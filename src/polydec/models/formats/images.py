"""Images from outside: files, bytes and data URLs, bounded before they are decoded, and decoded in a
process of its own.

A decoder of images is a large program in C that reads a stranger's bytes, and a few bytes may ask
for gigabytes of pixels. So a worker with limits does it (`polydec.base.subprocess_worker`), and what
it gives back has the size that the model reads.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polydec.base import edge
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.base.subprocess_worker import SubprocessLimits, SubprocessWorker

MOST_BYTES = 8 << 20
"""Bytes of an image as a file has it."""
MOST_PIXELS = 1 << 24
"""Pixels of an image, before it is made as high as the model reads."""
MEMORY = 768 << 20
"""Bytes of address space that decoding may use, the worker's own included."""
SECONDS = 5.0
"""Of computing, for one image."""
ANSWER = 5 * MOST_PIXELS
"""Bytes of a worker's answer: three for each pixel, in base64."""

_WORKER = SubprocessWorker(
    Path(__file__).with_name("image_worker.py"),
    SubprocessLimits(MEMORY, SECONDS, answer=ANSWER),
    "an image",
)


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


def read_pixel_strip(image: Image, shape: StripShape) -> PixelStrip:
    """Decode an image and make it as high as a model reads.

    Args:
        image: The image. What is transparent is paper; colours become greys.
        shape: How the model reads it.

    Returns:
        The strip, filled up with paper on the right to a whole number of positions.

    Raises:
        RequestError: It cannot be read, is animated, truncated or too large; one sentence.
    """
    asked = {"height": shape.height, "most_columns": shape.most * shape.stride}
    answer = decode_image(image, "strip", asked)
    return padded_strip(answer["pixels"], shape)


def decode_image(image: Image, reading: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Decode an image in the worker.

    Args:
        image: The image.
        reading: What is made of it, by its name in image_worker.py.
        asked: What that reading asks for.

    Returns:
        What the reading gives; "pixels" are bytes.

    Raises:
        RequestError: It cannot be read, is animated, truncated or too large; one sentence.
    """
    data = image.file_bytes()
    # JSON both ways: nothing that a decoder returns is unpickled.
    question = {
        "data": b64encode(data).decode(),
        "reading": reading,
        "most_pixels": MOST_PIXELS,
        **asked,
    }
    try:
        answer = _WORKER.ask_worker(json.dumps(question).encode() + b"\n")
    except PolydecError as why:
        # What takes the worker down is the image's fault, as far as its sender is concerned.
        answer = {"error": f"cannot be decoded: {why}"}
    if "error" in answer:
        raise RequestError(edge.error_sentence(f"image {answer['error']}"))
    return {**answer, "pixels": b64decode(answer["pixels"])}


def padded_strip(pixels: bytes, shape: StripShape) -> PixelStrip:
    """A strip of pixels, filled up with paper on the right.

    Args:
        pixels: Greys row by row, 0 (ink) to 255 (paper), `shape.height` rows.
        shape: How the model reads it.

    Returns:
        The strip, whose columns are a multiple of the stride.
    """
    columns = len(pixels) // shape.height
    # The last position sees as many columns as all others.
    paper = b"\xff" * (-columns % shape.stride)
    if not paper:
        return PixelStrip(shape.height, shape.stride, pixels)
    rows = (pixels[at : at + columns] for at in range(0, len(pixels), columns))
    return PixelStrip(shape.height, shape.stride, b"".join(row + paper for row in rows))


def is_image_part(part: object) -> bool:
    """Whether a part of a message's content is an image, in OpenAI's form."""
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def image_of_part(part: Mapping[str, Any], where: str) -> Image:
    """The image of a part of a message's content, `{"type": "image_url", "image_url": {"url": …}}`.

    Args:
        part: The part.
        where: What sentences call it.

    Returns:
        The image.

    Raises:
        RequestError: It has no data URL. Nothing is ever fetched from an address.
    """
    # OpenAI has an object with a url; its newer interface has the url alone.
    held = part.get("image_url")
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
