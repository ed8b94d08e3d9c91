"""How many vectors of a tile stay by what repeats in it, and which ones: each rule by itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polydec.methods.presses._correlation import (
    CorrelationChoice,
    LookedAt,
    RepeatedPatterns,
    averaged_into,
    outliers_of,
)
from polydec.methods.presses._vector_choices import RandomOrder, unit_rows
from polydec.models.nets.tile_evidence import TileEvidence

REPEATS = RepeatedPatterns(0.75, 0.05, 4)
LOOKED = LookedAt(0.25, False, 0)
CHOICE = CorrelationChoice(REPEATS, LOOKED, 0.0, None, False)
SIZE = 64


def drawn(seed):
    return np.random.default_rng(seed)


def cosines(keys_KD):
    unit_KD = unit_rows(keys_KD)
    return unit_KD @ unit_KD.T


def flat(size=SIZE, layers=5):
    """Attention that looks at all vectors alike."""
    return torch.full((layers, size), 1.0 / size)


def tile(keys_KD, looked_LK=None, **more):
    looked = flat(len(keys_KD)) if looked_LK is None else torch.as_tensor(looked_LK)
    return TileEvidence(torch.as_tensor(keys_KD), looked, **more)


def kept(choice, evidence, vectors_KD=None):
    size = len(evidence.keys_KD)
    rows = torch.arange(size).float()[:, None] if vectors_KD is None else vectors_KD
    return choice.keep_vectors(rows, evidence).cells


def document(seed, glyphs=19):
    """A page: some patches of their own among blank ones, which are nearly alike; which ones."""
    rng = drawn(seed)
    keys_KD = np.ones((SIZE, 32)) + 0.05 * rng.standard_normal((SIZE, 32))
    at = sorted(rng.choice(SIZE, glyphs, replace=False))
    keys_KD[at] = rng.standard_normal((glyphs, 32))
    return keys_KD, at


def test_a_page_of_one_colour_keeps_the_least():
    assert len(kept(CHOICE, tile(np.ones((SIZE, 8))))) == 4
    assert (
        len(kept(replace(CHOICE, repeats=replace(REPEATS, least=90)), tile(np.ones((SIZE, 8)))))
        == SIZE
    )


def test_what_repeats_nothing_stays():
    keys_KD = drawn(1).standard_normal((SIZE, 64))
    assert kept(CHOICE, tile(keys_KD)) == tuple(range(SIZE))


def test_redundant_is_what_more_than_a_share_repeats():
    """By hand: of ten vectors four are one, two another one."""
    keys_KD = np.eye(10)
    keys_KD[[1, 2, 3]] = keys_KD[0]
    keys_KD[5] = keys_KD[4]
    made = cosines(keys_KD)
    counts = {
        copies: RepeatedPatterns(0.75, copies, 1).kept_count(made)
        for copies in (0.0, 0.1, 0.2, 0.3)
    }
    # Four have three copies each, two have one; a share of 0.1 is one vector, of which none is more.
    assert counts == {0.0: 4, 0.1: 6, 0.2: 6, 0.3: 10}


def test_more_stay_the_more_alike_copies_must_be():
    keys_KD, _ = document(2)
    made = cosines(keys_KD)
    counts = [
        RepeatedPatterns(alike, 0.05, 1).kept_count(made)
        for alike in (-1.0, 0.0, 0.5, 0.75, 0.9, 0.9999, 1.0)
    ]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] == SIZE
    assert RepeatedPatterns(-1.0, 1.0, 1).kept_count(made) == SIZE, (
        "nothing has more copies than there are"
    )


def test_a_document_keeps_what_is_written():
    for seed in range(5):
        keys_KD, written = document(seed)
        looked_LK = flat().clone()
        looked_LK[:, written] *= 3.0
        cells = kept(CHOICE, tile(keys_KD, looked_LK))
        assert len(cells) == len(written) == 19
        assert set(cells) == set(written)
        any_ = kept(
            replace(CHOICE, anything=RandomOrder(seed)),
            tile(keys_KD, looked_LK),
            torch.rand(SIZE, 3),
        )
        assert len(any_) == 19 and len(set(any_) & set(written)) < 15


def test_the_order_of_patches_says_nothing():
    keys_KD, _ = document(7)
    looked_LK = torch.rand(5, SIZE, generator=torch.Generator().manual_seed(0))
    order = drawn(8).permutation(SIZE)
    one = kept(CHOICE, tile(keys_KD, looked_LK))
    other = kept(CHOICE, tile(keys_KD[order], looked_LK[:, order]))
    assert sorted(order[list(other)]) == list(one)


def test_outliers_of_an_early_layer_and_of_the_last_stay():
    looked_LK = flat().clone()
    looked_LK[1, 40] = looked_LK[4, 20] = 0.5
    looked_LK[2, 10] = looked_LK[0, 11] = 0.5
    page = tile(np.ones((SIZE, 8)), looked_LK)
    # Of five layers a quarter of the way is the second; what others see is not asked for.
    assert set(kept(CHOICE, page)) == {20, 40, 0, 1}
    assert set(kept(replace(CHOICE, looked=replace(LOOKED, local=0.0)), page)) == {11, 20, 0, 1}
    assert set(kept(replace(CHOICE, looked=replace(LOOKED, local=1.0)), page)) == {20, 0, 1, 2}
    # More outliers than room: all of them stay, unless a share is given.
    looked_LK[1, 30:39] = 0.5
    assert set(kept(CHOICE, page)) == {20, 40, *range(30, 39)}
    few = kept(replace(CHOICE, share=0.1), page)
    assert len(few) == 7 and 20 in few and set(few) < {20, 40, *range(30, 39)}


def test_an_outlier_is_above_the_third_quartile_by_one_and_a_half_of_the_middle():
    score_K = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 7.0, 7.1])
    # Quartiles are 1.5 and 5.5: what lies above 11.5 is one.
    assert not len(outliers_of(score_K))
    assert list(outliers_of(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 11.1]))) == [6]
    assert not len(outliers_of(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.9])))


def test_what_is_left_of_the_room_is_taken_from_the_most_down():
    looked_LK = flat().clone()
    looked_LK[-1] = torch.linspace(1.0, 2.0, SIZE)
    page = tile(np.ones((SIZE, 8)), looked_LK)
    assert kept(CHOICE, page) == tuple(range(SIZE - 4, SIZE))


def test_what_is_drawn_is_drawn_in_proportion():
    looked_LK = np.array([[0.1, 0.2, 0.3, 0.4]])
    counts = np.zeros(4)
    for seed in range(3000):
        (first,) = LookedAt(0.25, True, seed).fill_room(looked_LK, [], 1)
        counts[first] += 1
    assert np.abs(counts / 3000 - looked_LK[0]).max() < 0.035
    # Without replacement, and what stays already is not drawn again.
    assert sorted(LookedAt(0.25, True, 3).fill_room(looked_LK, [2], 4)) == [0, 1, 2, 3]


def test_what_goes_is_averaged_into_what_is_most_like_it():
    vectors_KD = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0], [0.0, 3.0]])
    made = cosines(np.array([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [0.0, 1.0]]))
    got = averaged_into(vectors_KD, (1, 2), made)
    assert torch.equal(got, torch.tensor([[0.0, 3.0], [2.0, 0.0]]))
    choice = replace(CHOICE, averages=True, repeats=replace(REPEATS, least=1), share=0.4)
    looked_LK = np.array([[0.1, 0.3, 0.4, 0.1, 0.1]])
    page = TileEvidence(
        torch.tensor([[1.0, 0.1], [0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [0.0, 1.0]]),
        torch.tensor(looked_LK),
    )
    made = choice.keep_vectors(vectors_KD, page)
    assert made.cells == (1, 2) and torch.equal(made.vectors_MD, got)


def test_the_whole_of_a_parted_image_stays():
    page = tile(np.ones((SIZE, 8)), is_overview=True)
    assert kept(CHOICE, page) == tuple(range(SIZE))


@pytest.mark.parametrize("share, count", [(0.1, 7), (0.2, 13), (0.35, 23), (1.0, 64)])
@pytest.mark.parametrize("anything", [None, RandomOrder(1)])
def test_a_share_takes_the_place_of_what_repeats(share, count, anything):
    keys_KD, _ = document(3)
    assert len(kept(replace(CHOICE, share=share, anything=anything), tile(keys_KD))) == count
