"""The network that lifts pictures: which rows see which, and where the large picture's tokens stand."""

import pytest
import torch

from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape


def small_network(height=7, width=5, ratio=2, layers=2):
    torch.manual_seed(0)
    return RowCausalUpsampler(UpsamplingShape(height, width, ratio, 4, 6, layers)).double()


@pytest.mark.parametrize("ratio", [2, 3])
def test_a_row_never_sees_what_stands_below_it(ratio):
    network = small_network(ratio=ratio)
    shape = network.shape
    low = torch.randint(0, 4, (1, shape.low_height, shape.low_width))
    for row in range(shape.low_height):
        other = low.clone()
        other[0, row] = (other[0, row] + 1) % 4
        changed = (network(low) - network(other)).abs().amax((0, 2, 3)) > 0
        assert not changed[: ratio * row].any() and changed[ratio * row : ratio * (row + 1)].all()


def test_fewer_rows_give_the_same_beginning():
    network = small_network()
    low = torch.randint(0, 4, (1, 4, 3))
    assert torch.allclose(network(low)[:, :4], network(low[:, :2]))


def test_a_token_changes_its_own_places_first():
    """Without convolutions a token of the small picture decides `ratio` by `ratio` places, and no others."""
    network = small_network(layers=0)
    low = torch.zeros(1, 4, 3, dtype=torch.long)
    other = low.clone()
    other[0, 2, 1] = 3
    changed = ((network(low) - network(other)).abs().sum(-1) > 0)[0]
    assert changed.nonzero().tolist() == [[4, 2], [4, 3], [5, 2], [5, 3]]


def test_ids_that_are_no_tiles_draw_nothing():
    network = small_network()
    low = torch.zeros(1, 2, 3, dtype=torch.long)
    nothing, far = (network(torch.full_like(low, x)) for x in (-1, 99))
    assert torch.equal(nothing, far) and not torch.equal(nothing, network(low))


def test_blocks_are_whole_rows_and_end_with_the_picture():
    shape = UpsamplingShape(7, 5, 2, 4, 6, 2)
    assert (shape.low_height, shape.low_width) == (4, 3)
    blocks = [shape.block_places(row) for row in range(5)]
    assert blocks == [range(0, 10), range(10, 20), range(20, 30), range(30, 35), range(35, 35)]
