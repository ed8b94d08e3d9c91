"""The neighbourhood-relaxed test: what it accepts at its ends and in between."""

import pytest
import torch

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.methods.speculative.verifiers.neighbourhood import NeighbourhoodVerifier
from polydec.models.learned.kinds.upsampler import PictureUpsampler
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores
from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape

# Tiles of one pixel: 0 and 1 look alike, 2 and 3 do, and 5 is no tile.
LEVELS = (0, 1, 100, 101, 250)
CHANCE = (0.30, 0.05, 0.06, 0.05, 0.0, 0.54)


def lifting():
    torch.manual_seed(0)
    shape = UpsamplingShape(2, 2, 2, len(LEVELS), 2, 0)
    tiles = torch.tensor(LEVELS, dtype=torch.uint8)[:, None, None, None]
    vocab = TokenVocabulary(6, frozenset())
    return PictureUpsampler(vocab, shape, tiles, RowCausalUpsampler(shape).state_dict())


LIFTING = lifting()
SCORES = LogitScores([NetworkAnswer(torch.tensor([CHANCE], dtype=torch.float64).log())])


def accepted(**fields):
    test = NeighbourhoodVerifier(LIFTING, **fields)
    return {x for x in range(6) if test.accepts_token(SCORES, 0, x)}


def test_alone_a_token_needs_the_probability_itself():
    assert accepted(near=1, threshold=0.055) == {0, 2, 5}
    assert accepted(near=1, threshold=0.3) == {0, 5}


def test_neighbours_speak_for_a_token():
    # 0 and 1 have 0.35 together, 2 and 3 have 0.11, 4 has that of 3; 5 is its only neighbour.
    assert accepted(near=2, threshold=0.11) == {0, 1, 2, 3, 5}
    assert accepted(near=2, threshold=0.2) == {0, 1, 5}
    assert accepted(near=2, threshold=0.05) == {0, 1, 2, 3, 4, 5}


def test_all_tiles_together_accept_every_tile():
    assert accepted(near=5, threshold=0.46) == {0, 1, 2, 3, 4, 5}
    assert accepted(near=5, threshold=0.0) == {0, 1, 2, 3, 4, 5}


def test_above_1_nothing_stands():
    assert accepted(near=5, threshold=1.5) == set()


def test_where_texts_are_constrained_a_token_needs_a_probability_of_its_own():
    assert accepted(near=2, threshold=0.05, legal=True) == {0, 1, 2, 3, 5}


class CertainScores:
    def certain_token(self, i):
        return 1


def test_a_certain_row_accepts_what_has_its_token_for_a_neighbour():
    def stands(**fields):
        test = NeighbourhoodVerifier(LIFTING, **fields)
        return {x for x in range(6) if test.accepts_token(CertainScores(), 0, x)}

    assert stands(near=1) == {1} and stands(near=2) == {0, 1}
    assert stands(near=2, legal=True) == {1}
    assert stands(near=2, threshold=1.5) == set()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"near": 0}, "near is 0"),
        ({"threshold": 2.5}, "threshold is 2.5"),
        ({"threshold": -1}, "threshold"),
    ],
)
def test_values_out_of_range_are_refused(fields, says):
    with pytest.raises(RequestError, match=says):
        NeighbourhoodVerifier(LIFTING, **fields)
