"""The PNG files that are written here, read back by their specification."""

import struct
import zlib

import numpy as np
import pytest

from polydec.base.png import SIGNATURE, png_bytes


def chunks_of(content):
    """(kind, data) of each part of a file, whose sums are checked."""
    assert content.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack(">I", content[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + data
        )
        yield kind, data
        at += 12 + size


def read_png(content):
    """The pixels of a file that was written here, [H, W, C]."""
    parts = list(chunks_of(content))
    assert [kind for kind, _ in parts] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, bits, kind, *rest = struct.unpack(">IIBBBBB", parts[0][1])
    values = {0: 1, 2: 3}[kind]
    assert bits == 8 and rest == [0, 0, 0]
    lines = np.frombuffer(zlib.decompress(parts[1][1]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, values)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 1), (4, 2, 3)])
def test_pixels_come_back(shape):
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    assert (read_png(png_bytes(pixels)) == pixels).all()


def test_pixels_may_be_a_view_of_others():
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3).transpose(1, 0, 2)
    assert (read_png(png_bytes(pixels)) == pixels).all()
