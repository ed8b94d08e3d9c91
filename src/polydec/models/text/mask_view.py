"""What the masks of an answer look like, and what JSON says of its references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import interpolate

from polydec.core.request import ImageMask, ReferenceState
from polydec.models.text.picture_view import DrawnPicture

INKS = (
    *((255, 255, 255), (255, 96, 96), (96, 208, 96), (96, 144, 255)),
    *((240, 208, 64), (192, 112, 255), (255, 160, 64), (64, 208, 208)),
)
"""The colours of masks, in their order; what no mask covers is black."""


def mask_pixels(mask: ImageMask) -> Tensor:
    """Which pixels of the image belong to a mask.

    Args:
        mask: The mask. Between the middles of patches its logits go over into one another (bilinear).

    Returns:
        ``[H, W]``, bool, as large as the model reads the image.
    """
    # A batch of one picture of one value.
    wide = interpolate(
        mask.logit_HW[None, None], scale_factor=mask.patch, mode="bilinear", align_corners=False
    )
    return wide[0, 0] > 0


def draw_masks(masks: Sequence[ImageMask]) -> DrawnPicture:
    """Draw masks into one picture.

    Args:
        masks: Masks of one image, at least one.

    Returns:
        The picture, as large as the model reads the image; where masks overlap, the later one is seen.
    """
    # All are of one image, so they have one size.
    shape = mask_pixels(masks[0]).shape
    pixels = np.zeros((*shape, 3), np.uint8)
    for at, mask in enumerate(masks):
        pixels[mask_pixels(mask).numpy()] = INKS[at % len(INKS)]
    return DrawnPicture(pixels)


def mask_json(mask: ImageMask) -> dict[str, Any]:
    """A mask as JSON: the number of the token that asked for it, and of each row of patches a text with 1 where a
    patch belongs to it and 0 elsewhere."""
    # A logit of 0 says nothing, and counts as outside.
    rows = (mask.logit_HW > 0).int().tolist()
    return {"token": mask.place, "patches": ["".join(map(str, row)) for row in rows]}


def reference_json(reference: ReferenceState) -> dict[str, Any]:
    """A reference as JSON: the number of the token with which it is complete, what it refers to, its box where it has
    one, and the model's state there, a list of numbers."""
    return {
        "token": reference.place,
        "name": reference.name,
        "unit": reference.unit,
        "index": reference.index,
        **({} if reference.box is None else {"box": list(reference.box)}),
        "state": reference.state_H.tolist(),
    }
