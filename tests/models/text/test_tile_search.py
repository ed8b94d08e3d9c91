"""Pictures quantised, drawn and averaged down."""

import numpy as np
import torch

from polydec.models.text.picture_view import PictureView
from polydec.models.text.tile_search import draw_tiles, shrink_pixels, tokens_of_pixels

TILES = np.stack([np.full((2, 2, 1), level, np.uint8) for level in (0, 100, 200)])


def test_what_tokens_draw_is_quantised_to_them():
    tokens = torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 0, 0, 1, 1]])
    drawn = draw_tiles(tokens, 2, 3, TILES)
    assert drawn.shape == (2, 4, 6, 1)
    assert torch.equal(tokens_of_pixels(drawn, TILES), tokens)
    view = PictureView(2, 3, TILES, ())
    for row, pixels in zip(tokens.tolist(), drawn, strict=True):
        assert (view.draw_tokens(row).pixels == pixels).all()


def test_pictures_are_averaged_down_and_go_on_at_their_edges():
    pixels = np.arange(25, dtype=np.uint8).reshape(1, 5, 5, 1) * 4
    small = shrink_pixels(pixels, 2, 4, 3)[0, ..., 0]
    assert small[0, 0] == round(np.mean([0, 4, 20, 24]))
    # The last column stands beside itself, the last row below itself, and so on.
    assert small[0, 2] == round(np.mean([16, 16, 36, 36]))
    assert small[2, 1] == round(np.mean([88, 92, 88, 92]))
    assert (small[3] == small[2].astype(int)).sum() == 3 or small[3, 0] == round(np.mean([80, 84]))
