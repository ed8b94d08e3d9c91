"""Who sees whom, against the definition, for every part of every small text and tree."""

import itertools

import pytest
import torch

from polydec.models.nets.masks import NEG_INF, tree_attention_mask

CPU = torch.device("cpu")
TREES = [
    parent
    for n in range(5)
    for parent in itertools.product(*(range(-1, j) for j in range(n)))  # each entry after its own
]


def sees(row: int, slot: int, length: int, parent: tuple[int, ...]) -> bool:
    """Whether the slot `row` sees another: a committed one those before it, a staged one its ancestors as well."""
    if row < length or slot < length:
        return slot <= row
    at = row - length
    while at >= 0:
        if at == slot - length:
            return True
        at = parent[at]
    return False


@pytest.mark.parametrize("length", [0, 1, 5])
def test_every_part_of_a_text_and_the_tree_behind_it(length):
    for parent in TREES:
        end = length + len(parent)
        for first, stop in itertools.combinations(range(end + 1), 2):
            low = min(first, length)
            want = [
                [0.0 if sees(row, slot, length, parent) else NEG_INF for slot in range(low, stop)]
                for row in range(first, stop)
            ]
            got = tree_attention_mask(first, stop, length, parent, torch.float32, CPU)
            assert got.tolist() == want, (parent, first, stop)
