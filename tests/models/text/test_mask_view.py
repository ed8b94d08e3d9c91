"""What masks look like: in pixels, in one picture, and as JSON."""

import pytest
import torch

from polydec.core.request import ImageMask
from polydec.models.text.mask_view import INKS, draw_masks, mask_json, mask_pixels


def mask(*rows, place=0, patch=4):
    return ImageMask(place, torch.tensor(rows, dtype=torch.float32), patch)


def test_logits_go_over_into_one_another_between_the_middles_of_patches():
    pixels = mask((3.0, -1.0), patch=8)
    # From the middle of the left patch (pixel 4) the logit falls by 4 over 8 pixels: 0 lies 6 further on.
    row = mask_pixels(pixels)[0].tolist()
    assert row == [True] * 10 + [False] * 6
    assert mask_pixels(mask((0.0,))).sum() == 0, "a logit of 0 is outside"


def test_each_mask_has_its_colour_and_the_later_one_is_seen():
    some = [mask((1.0, -1.0), place=1), mask((-1.0, 1.0), place=2), mask((1.0, 1.0), place=5)]
    picture = draw_masks(some[:2])
    assert picture.pixels.shape == (4, 8, 3)
    assert tuple(picture.pixels[0, 0]) == INKS[0] and tuple(picture.pixels[0, 7]) == INKS[1]
    assert tuple(draw_masks([*some]).pixels[0, 0]) == INKS[2]
    assert not draw_masks([mask((-1.0,))]).pixels.any()
    # Colours begin anew behind the last one.
    many = [mask((1.0,)) for _ in range(len(INKS) + 1)]
    assert tuple(draw_masks(many).pixels[0, 0]) == INKS[0]
    assert len(set(INKS)) == len(INKS) and (0, 0, 0) not in INKS


def test_as_json_it_has_a_text_a_row():
    told = mask_json(mask((1.0, -1.0, 0.5), (-2.0, 3.0, 0.0), place=4))
    assert told == {"token": 4, "patches": ["101", "010"]}


@pytest.mark.parametrize("patch", [1, 7])
def test_a_picture_is_as_large_as_the_image_that_is_read(patch):
    assert draw_masks([mask((1.0, -1.0), (0.1, 2.0), (1.0, 1.0), patch=patch)]).pixels.shape == (
        3 * patch,
        2 * patch,
        3,
    )
