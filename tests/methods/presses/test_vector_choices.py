"""Which vectors of an image stay: against brute force, and each rule against what it promises."""

from itertools import combinations

import numpy as np
import pytest
import torch

from polydec.methods.presses._vector_choices import (
    FarthestFirst,
    LargestSum,
    RandomOrder,
    ShareOfVectors,
    vector_orders,
)

ORDERS = vector_orders(0)


def drawn(seed, size=9, width=4):
    return np.random.default_rng(seed).standard_normal((size, width))


def distances(vectors_KD):
    unit_KD = vectors_KD / np.linalg.norm(vectors_KD, axis=1, keepdims=True)
    return 1.0 - unit_KD @ unit_KD.T


def radius(far_KK, taken):
    """The largest distance of any vector to the nearest that was taken."""
    return far_KK[:, list(taken)].min(1).max()


def test_the_next_centre_is_the_farthest_from_its_nearest():
    for seed in range(20):
        vectors_KD = drawn(seed)
        far_KK = distances(vectors_KD)
        taken = FarthestFirst().take_vectors(vectors_KD, 6)
        unit_KD = vectors_KD / np.linalg.norm(vectors_KD, axis=1, keepdims=True)
        mean_D = unit_KD.mean(0)
        assert taken[0] == (unit_KD @ mean_D).argmin()
        for n in range(1, 6):
            left = [i for i in range(9) if i not in taken[:n]]
            nearest = [far_KK[i, taken[:n]].min() for i in left]
            assert taken[n] == left[int(np.argmax(nearest))]


def test_centres_cover_four_times_as_far_as_the_best_ones_at_most():
    """One less the cosine is half of a squared distance, which is no metric: the factor is 4 and not 2."""
    worse = list[float]()
    for seed in range(20):
        vectors_KD = drawn(seed)
        far_KK = distances(vectors_KD)
        best = min(radius(far_KK, c) for c in combinations(range(9), 3))
        got = radius(far_KK, FarthestFirst().take_vectors(vectors_KD, 3))
        assert got <= 4.0 * best + 1e-12
        worse.append(got / best)
        # Any three vectors are farther from the best than that now and then, so the bound says something.
    assert max(worse) < 4.0 and min(worse) < 1.5


def test_the_largest_sum_comes_next():
    for seed in range(20):
        vectors_KD = drawn(seed)
        far_KK = distances(vectors_KD)
        taken = LargestSum().take_vectors(vectors_KD, 6)
        for n in range(1, 6):
            left = [i for i in range(9) if i not in taken[:n]]
            sums = [far_KK[i, taken[:n]].sum() for i in left]
            assert taken[n] == left[int(np.argmax(sums))]


def test_copies_are_taken_last():
    vectors_KD = np.concatenate([drawn(3, 4)] * 3)
    taken = FarthestFirst().take_vectors(vectors_KD, 4)
    assert {i % 4 for i in taken} == {0, 1, 2, 3}


def test_any_vectors_are_named_by_their_seed():
    vectors_KD = drawn(5, 40)
    one, same, other = (RandomOrder(s).take_vectors(vectors_KD, 12) for s in (1, 1, 2))
    assert one == same != other and len({*one}) == 12
    # All cells are reached: over many images none is preferred.
    counts = np.zeros(40)
    for seed in range(400):
        counts[RandomOrder(seed).take_vectors(vectors_KD, 12)] += 1
    assert counts.min() > 70 and counts.max() < 170


@pytest.mark.parametrize("name", ORDERS)
def test_a_share_stays_in_order(name):
    vectors_KD = torch.from_numpy(drawn(7, 10)).float()
    for share, count in (
        (0.001, 1),
        (0.1, 1),
        (0.11, 2),
        (0.2, 2),
        (0.7, 7),
        (0.999, 10),
        (1.0, 10),
    ):
        kept = ShareOfVectors(share, ORDERS[name]).keep_vectors(vectors_KD, None)
        assert len(kept.cells) == count and list(kept.cells) == sorted({*kept.cells})
        assert torch.equal(kept.vectors_MD, vectors_KD[list(kept.cells)])
    taken = ORDERS[name].take_vectors(vectors_KD.double().numpy(), 4)
    assert ShareOfVectors(0.4, ORDERS[name]).keep_vectors(vectors_KD, None).cells == tuple(
        sorted(taken)
    )


def test_vectors_of_zeros_have_a_place():
    for order in ORDERS.values():
        taken = order.take_vectors(np.zeros((5, 3)), 4)
        assert len({*taken}) == 4
