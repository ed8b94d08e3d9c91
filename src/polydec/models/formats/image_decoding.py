"""Images decoded, in a process of its own: a strip of greys for a model that reads words, a square of
colours for one that learns to draw, tiles for a vision tower.

A decoder of images is a large program in C that reads a stranger's bytes, and a few bytes may ask
for gigabytes of pixels. So a worker with limits does it (`polydec.base.subprocess_worker`), and what
it gives back has the size that is asked for.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polydec.base import edge
from polydec.base.errors import PolydecError, RequestError
from polydec.base.subprocess_worker import SubprocessLimits, SubprocessWorker, WorkerBusyError
from polydec.models.formats.images import (
    DecodedImage,
    Image,
    PixelStrip,
    StripShape,
)

MOST_PIXELS = 1 << 24
"""Pixels of an image, before it is made of another size."""
MEMORY = 768 << 20
"""Bytes of address space that decoding may use, the worker's own included."""
SECONDS = 5.0
"""Of computing, for one image."""

ANSWER = 5 * MOST_PIXELS
"""Bytes of a worker's answer: three for each pixel, in base64."""
BOX = 4
"""Pillow's filter that averages over areas."""

_WORKER = SubprocessWorker(
    Path(__file__).with_name("image_worker.py"),
    SubprocessLimits(MEMORY, SECONDS, answer=ANSWER),
    "an image",
)


def read_pixel_strip(image: Image | DecodedImage, shape: StripShape) -> PixelStrip:
    """Decode an image and make it as high as a model reads.

    Args:
        image: The image. What is transparent is paper; colours become greys.
        shape: How the model reads it.

    Returns:
        The strip, filled up with paper on the right to a whole number of positions.

    Raises:
        RequestError: It cannot be read, is animated, truncated or too large; one sentence.
        WorkerBusyError: Too many images wait (see `few_waiting`).
    """
    if isinstance(image, DecodedImage):
        if image.form == shape:
            return image.content
        # Another model reads it, in a form of its own.
        image = image.image
    asked = {"height": shape.height, "most_columns": shape.most * shape.stride}
    return padded_strip(decode_image(image, "strip", asked)["pixels"], shape)


def read_square_pixels(image: Image, side: int) -> bytes:
    """Decode an image and make it a square, averaged over areas.

    Args:
        image: The image. What is transparent stands on white.
        side: Pixels of a row and of a column. 1 to 4096.

    Returns:
        Red, green and blue of each pixel, 0 to 255, row by row.

    Raises:
        RequestError: It cannot be read, is animated, truncated or too large; one sentence.
    """
    asked = {"short": None, "size": (side, side), "crop": None, "resample": BOX}
    return decode_image(image, "crop", asked)["pixels"]


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
        WorkerBusyError: Too many images wait (see `few_waiting`).
    """
    # JSON both ways: nothing that a decoder returns is unpickled.
    question = {
        "data": b64encode(image.file_bytes()).decode(),
        "reading": reading,
        "most_pixels": MOST_PIXELS,
        **asked,
    }
    try:
        answer = _WORKER.ask_worker(json.dumps(question).encode() + b"\n")
    # Not the image's fault: whoever reads requests says that it may be tried again.
    except WorkerBusyError:
        raise
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
