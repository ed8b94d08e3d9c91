"""Calibrated chances, drafting while it pays, and trees that are built node by node."""

import random

import pytest
import torch

from polydec.core.types import Draft, DrawKind
from polydec.methods.economics.calibration import ChanceCalibration, bin_of
from polydec.methods.economics.goodput import while_it_pays
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.types import Verdict


def test_a_chance_goes_from_its_prior_to_what_was_observed():
    rates = ChanceCalibration(3, weight=4.0)
    assert rates.cell_chance(1, 0.5) == 0.5
    rates.add_cases(1, True)
    assert (
        rates.cell_chance(1, 0.5) == pytest.approx((1 + 4 * 0.5) / 5)
        and rates.cell_chance(0, 0.25) == rates.cell_chance(2, 0.25) == 0.25
    )
    for _ in range(10_000):
        rates.add_cases(1, False)
    assert rates.cell_chance(1, 0.5) < 0.001


def test_counts_are_halved_where_old_ones_fade():
    rates = ChanceCalibration(1, 1.0, forget=8)
    for _ in range(100):
        rates.add_cases(0, True)
        assert rates.tried[0] < 8
    for _ in range(16):
        rates.add_cases(0, False)
    assert rates.cell_chance(0, 0.5) < 0.3


def test_a_copy_learns_alone():
    rates = ChanceCalibration(2, 8.0, 256)
    twin = rates.copy()
    twin.add_cases(0, 1.0, 0.5)
    assert (rates.tried, twin.tried, twin.right) == (
        [0.0, 0.0],
        [0.5, 0.0],
        [1.0, 0.0],
    ) and twin.weight == 8.0


def test_bins():
    assert [bin_of(p, 4) for p in (0.0, 0.24, 0.25, 0.99, 1.0)] == [0, 0, 1, 3, 3]


def test_a_chain_goes_on_while_it_pays():
    for saved, most in ((10.0, 20), (2.0, 3), (0.5, 1)):
        go_on = while_it_pays(lambda q: q, 0.8, saved, lambda n: 1.0)
        length = next((n for n in range(1, 20) if not go_on(n, 0.8)), 20)
        assert length <= most
        expected = next((n for n in range(1, 20) if not 0.8 ** (n + 1) * saved > 1.0), 20)
        assert length == expected, (
            "with equal chances the n-th token pays while its path's chance does"
        )
    sure, doubtful = (while_it_pays(lambda q: q, 0.5, 3.0, lambda n: 1.0) for _ in range(2))
    assert sure(1, 0.9) and not doubtful(1, 0.3)
    assert not while_it_pays(lambda q: q, 0.9, 3.0, lambda n: 10.0)(1, 1.0), (
        "what costs more than it saves is not drafted"
    )


def test_a_builder_finds_what_is_there():
    tree = TreeBuilder(7)
    a = tree.find_or_add(0, 1, 0.5)
    assert (
        tree.find_or_add(0, 1, 0.8) == a
        and tree.find_or_add(0, 1, 0.2) == a
        and tree.chance[a] == 0.8
    )
    probe = tree.add_node(a, 2, probe=True)
    b = tree.find_or_add(a, 2, 0.4)
    assert b != probe, "a probe is nobody's to build upon"
    draft = tree.built_draft()
    assert (draft.token, draft.parent, draft.probe) == (
        (7, 1, 2, 2),
        (-1, 0, 1, 1),
        (False, False, True, False),
    )
    assert draft.chance == (1.0, 0.8, 1.0, 0.4) and tree.depth == [0, 1, 2, 2] == list(draft.depth)
    assert TreeBuilder(7).built_draft().chance is None is TreeBuilder(7).built_draft().probe


def test_a_builder_goes_on_with_a_draft():
    law_V = torch.zeros(3).log_softmax(0)
    draft = Draft(
        (0, 1, 1, 2),
        (-1, 0, 0, 2),
        (DrawKind.CERTAIN, DrawKind.INDEPENDENT, DrawKind.INDEPENDENT, DrawKind.CERTAIN),
        (None, law_V, law_V, None),
    )
    same = TreeBuilder.of_draft(draft).built_draft()
    assert (same.token, same.parent, same.draw, same.law) == (
        draft.token,
        draft.parent,
        draft.draw,
        draft.law,
    )
    assert same.chance is None
    assert TreeBuilder.of_draft(draft).find_or_add(0, 1) == 1, (
        "of equal children the first has the tree below"
    )


def test_nodes_of_tokens_and_tokens_of_nodes():
    dice = random.Random(5)
    for _ in range(200):
        tree = TreeBuilder(0)
        for _ in range(dice.randrange(8)):
            tree.find_or_add(dice.randrange(len(tree)), dice.randrange(3))
        draft = tree.built_draft()
        node = dice.randrange(len(draft))
        verdict = Verdict(draft.path_to(node), 9)
        assert (
            verdict.written_tokens(draft) == (*verdict.accepted_tokens(draft), 9)
            and verdict.committed_tokens(draft)[0] == 0
        )
        assert draft.nodes_of(verdict.committed_tokens(draft)) == [0, *verdict.path]
        assert draft.nodes_of((*verdict.committed_tokens(draft), 9)) == [0, *verdict.path]
        assert draft.nodes_of((5, 1)) == draft.nodes_of(()) == []
