"""Strips of pixels as rows of numbers: what a network that reads images is given."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from polydec.models.formats.images import PixelStrip, StripShape


def strip_windows(strip: PixelStrip, shape: StripShape) -> Tensor:
    """The windows of an image, one for each of its positions.

    A window is as high as the strip and sees its own columns in its middle, with paper beyond both
    ends. Each is a row by itself, so an image reads the same in any company.

    Args:
        strip: The image.
        shape: How the model cuts it.

    Returns:
        How much ink each pixel has, 0 (paper) to 1, shape ``[positions, height * window]``, float32.
    """
    # A copy: torch would warn of bytes that cannot be written to.
    grey_HC = torch.frombuffer(bytearray(strip.pixels), dtype=torch.uint8).view(strip.height, -1)
    ink_HC = 1 - grey_HC.float() / 255
    beside = (shape.window - shape.stride) // 2
    # [height, positions, window]
    windows_HNW = pad(ink_HC, (beside, beside)).unfold(1, shape.window, shape.stride)
    return windows_HNW.transpose(0, 1).flatten(1)
