"""The file of a picture: PNG, written without a library for images."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"

COLOUR_TYPES = {1: 0, 3: 2}
"""PNG's number of a kind of pixels, by how many values one has: grey, or red, green and blue."""


def png_bytes(pixels_HWC: NDArray[np.uint8]) -> bytes:
    """Write pixels as a PNG file.

    Args:
        pixels_HWC: 8 bits a value, shape ``[H, W, C]``, H and W at least 1; C is 1 (grey) or 3 (red,
            green, blue).

    Returns:
        The content of the file.

    Source: Boutell et al., "PNG (portable network graphics) specification", RFC 2083 (1997).
    """
    height, width, values = pixels_HWC.shape
    kind = COLOUR_TYPES[values]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    # Each line begins with the number of its filter; 0 leaves the values as they are.
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels_HWC))
    return b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", head),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A part of the file: its length, its kind, its data, and a sum that shows damage."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
