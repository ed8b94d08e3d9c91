"""An up-sampler: the rows under a row of the small picture, both ways between the sizes, and which tiles look alike."""

from dataclasses import replace

import pytest
import torch

from polydec.core.types import TokenVocabulary
from polydec.models.learned.kinds import upsampler
from polydec.models.learned.kinds.upsampler import PictureUpsampler
from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape

LEVELS = (0, 10, 60, 100, 255, 255)
VOCAB = TokenVocabulary(8, frozenset())


def made_upsampler(height=5, width=6, ratio=2, levels=LEVELS):
    torch.manual_seed(1)
    shape = UpsamplingShape(height, width, ratio, len(levels), 6, 1)
    tiles = torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].repeat(1, 2, 2, 1)
    return PictureUpsampler(VOCAB, shape, tiles, RowCausalUpsampler(shape).state_dict())


def test_pictures_of_one_pass_are_lifted_as_they_are_alone():
    lifting = made_upsampler()
    queries = [((0, 1, 2),), ((3, 3, 0), (1, 2, 4), (4, 4, 4)), ((2, 2, 2), (0, 0, 1))]
    together = lifting.forward(queries)
    for query, logits in zip(queries, together, strict=True):
        assert torch.allclose(logits, lifting.forward([query])[0], atol=1e-6)
    # The third block has one row: the picture has five.
    assert [len(x) for x in together] == [12, 6, 12]


def test_logits_stand_under_the_last_row():
    lifting = made_upsampler()
    rows = ((3, 3, 0), (1, 2, 4))
    whole = lifting.network(torch.tensor([rows]))[0]
    assert torch.allclose(lifting.forward([rows])[0], whole[2:4].flatten(0, 1), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 6), (5, 5)])
def test_a_flat_picture_survives_both_ways(height, width):
    lifting = made_upsampler(height, width)
    for token in range(5):
        row = (token,) * lifting.shape.low_width
        rows = tuple(row for _ in range(lifting.shape.low_height))
        for at in range(len(rows)):
            block = lifting.lift_pixels(rows[: at + 1])
            assert block == (token,) * len(lifting.shape.block_places(at))
            assert lifting.shrink_block(block) == row


def test_a_block_is_averaged_over_squares():
    lifting = made_upsampler(4, 4)
    # Means of 0, 0, 255, 0 and of 60, 60, 60, 60: the nearest tiles are those of 60 and of 60.
    assert lifting.shrink_block((0, 0, 2, 2, 4, 0, 2, 2)) == (2, 2)


def test_pixels_are_lifted_in_sight_of_the_row_above():
    lifting = made_upsampler(6, 6, levels=tuple(range(0, 256, 5)))
    low, high = (10, 10, 10), (40, 40, 40)
    alone, below = lifting.lift_pixels((high,)), lifting.lift_pixels((low, high))
    assert alone == (40,) * 12 and set(below[:6]) != {40}
    # What stands further up counts for nothing.
    assert lifting.lift_pixels((high, low, high)) == lifting.lift_pixels((low, low, high)) == below


def test_the_nearest_tiles_begin_with_the_tile_itself():
    lifting = made_upsampler()
    near = lifting.near_tiles(2)
    assert near[:, 0].tolist() == list(range(6))
    assert near[:4, 1].tolist() == [1, 0, 3, 2]
    # Two tiles that look the same stand beside each other.
    assert near[4:].tolist() == [[4, 5], [5, 4]]
    assert lifting.near_tiles(99).shape == (6, 6)


def test_what_is_saved_is_read_again(tmp_path):
    lifting = made_upsampler()
    upsampler.save(tmp_path, lifting, {"held_out_nats": 1.0})
    again = upsampler.load(tmp_path)
    assert again.shape == lifting.shape and torch.equal(again.tiles, lifting.tiles)
    rows = ((0, 1, 2),)
    assert torch.equal(again.forward([rows])[0], lifting.forward([rows])[0])
    colours = replace(lifting, tiles=lifting.tiles.repeat(1, 1, 1, 3))
    upsampler.save(tmp_path / "colours", colours, {})
    assert upsampler.load(tmp_path / "colours").tiles.shape == (6, 2, 2, 3)
