"""Pictures cut into squares, and the tile that lies nearest to each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def cut_patches(pixels_NHWC: NDArray[np.uint8], patch: int) -> Tensor:
    """Cut pictures into squares.

    Args:
        pixels_NHWC: Pictures, whose sides are multiples of `patch`.
        patch: Pixels of a square's side.

    Returns:
        The squares, row by row from the top left, shape ``[N, L, patch * patch * C]``, float32.
    """
    N, H, W, C = pixels_NHWC.shape
    # Rows and columns of squares come first, what is inside of a square last.
    cut = pixels_NHWC.reshape(N, H // patch, patch, W // patch, patch, C)
    rows = cut.transpose(0, 1, 3, 2, 4, 5).reshape(N, -1, patch * patch * C)
    return torch.from_numpy(np.ascontiguousarray(rows)).float()


def nearest_tiles(patches_ND: Tensor, tile_KD: Tensor) -> Tensor:
    """Find the tile that lies nearest to each patch.

    Args:
        patches_ND: Patches, shape ``[N, D]``.
        tile_KD: Tiles, shape ``[K, D]``.

    Returns:
        The number of its tile, shape ``[N]``.
    """
    # In parts: the table of distances of all patches at once would be large.
    return torch.cat([torch.cdist(part, tile_KD).argmin(-1) for part in patches_ND.split(4096)])


def tokens_of_pixels(pixels_NHWC: NDArray[np.uint8], tiles_KPPC: NDArray[Any]) -> Tensor:
    """Quantise pictures.

    Args:
        pixels_NHWC: Pictures, whose sides are multiples of a tile's.
        tiles_KPPC: What each token draws.

    Returns:
        The token of each square, row by row from the top left, shape ``[N, L]``.
    """
    tile_KD = torch.from_numpy(tiles_KPPC.reshape(len(tiles_KPPC), -1).astype(np.float32))
    patch_NLD = cut_patches(pixels_NHWC, tiles_KPPC.shape[1])
    # All squares of all pictures are looked up as one list.
    return nearest_tiles(patch_NLD.flatten(0, 1), tile_KD).view(patch_NLD.shape[:2])


def shrink_pixels(
    pixels_NHWC: NDArray[np.uint8], ratio: int, height: int, width: int
) -> NDArray[np.uint8]:
    """Average pictures over squares of `ratio` pixels a side.

    Where a picture is too small for that, its last row and its last column go on below and to the
    right.

    Args:
        pixels_NHWC: Pictures, at most ``ratio * height`` by ``ratio * width`` pixels.
        ratio: Pixels of a square's side.
        height: Pixels of a column of what is made.
        width: Pixels of a row of it.

    Returns:
        Smaller pictures, shape ``[N, height, width, C]``.
    """
    N, H, W, C = pixels_NHWC.shape
    beyond = ((0, 0), (0, ratio * height - H), (0, ratio * width - W), (0, 0))
    # Black edges would darken what is averaged with them; edges that go on do not.
    whole = np.pad(pixels_NHWC, beyond, mode="edge")
    squares = whole.reshape(N, height, ratio, width, ratio, C).astype(np.float32)
    # Averaged as floats: sums of pixels do not fit in 8 bits.
    return squares.mean((2, 4)).round().astype(np.uint8)


def draw_tiles(
    token_NL: Tensor, height: int, width: int, tiles_KPPC: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Draw pictures.

    Args:
        token_NL: Tokens of tiles, row by row from the top left, shape ``[N, L]``.
        height: Tokens of a column.
        width: Tokens of a row.
        tiles_KPPC: What each token draws.

    Returns:
        Pictures, shape ``[N, H, W, C]`` in pixels.
    """
    _, side, _, values = tiles_KPPC.shape
    # One tile for each token, in a grid; then rows of pixels are put side by side.
    grid = tiles_KPPC[token_NL.numpy()].reshape(-1, height, width, side, side, values)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(-1, height * side, width * side, values)
