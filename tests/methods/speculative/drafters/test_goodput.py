"""The goodput policy."""

import pytest

from polydec.core.types import Draft
from polydec.methods.economics.calibration import bin_of
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.goodput import BINS, GoodputPolicy


def chain(n, chance=0.9):
    return Draft.certain_tree((0,) * (n + 1), range(-1, n), (1.0, *[chance] * n))


def test_drafts_that_fail_end_in_no_drafts_but_for_exploring():
    policy = GoodputPolicy(PassCosts((1.0, 1.3), 0.1), explore=8)
    state, depths = policy.start_state(), []
    for _ in range(60):
        budget = policy.draft_budget(state)
        depths.append(budget.depth)
        n = min(budget.depth, 2)
        state = policy.observe_round(state, chain(n), Verdict((), 0))
    assert depths[0] == 10
    late = depths[-24:]
    assert late.count(10) == 3 and late.count(0) == 21


def test_drafts_that_hold_grow_longer_than_doubtful_ones():
    policy = GoodputPolicy(PassCosts((1.0, 1.3), 0.1))
    state = policy.start_state()
    for _ in range(30):
        state = policy.observe_round(state, chain(3), Verdict((1, 2, 3), 0))

    def length(q):
        budget = policy.draft_budget(state)
        return next(d for d in range(1, 30) if d == budget.depth or not budget.go_on(d, q))

    assert length(0.95) > length(0.2) >= 1


def test_what_was_accepted_counts_more_than_what_was_said():
    policy = GoodputPolicy(PassCosts((1.0, 1.3), 0.1))
    sure = policy.start_state()
    for _ in range(40):
        sure = policy.observe_round(sure, chain(1, 0.95), Verdict((), 0))
    in_bin = bin_of(0.95, BINS)
    assert (
        sure.rates.cell_chance(in_bin, 0.95)
        < 0.2
        < 0.9
        < policy.start_state().rates.cell_chance(in_bin, 0.95)
    )


def test_where_nothing_costs_it_is_fixed():
    """Reduces to `fixed`."""
    policy = GoodputPolicy(PassCosts((1.0, 1.0), 0.0), depth=5)
    budget = policy.draft_budget(policy.start_state())
    assert (
        isinstance(budget, DraftBudget)
        and budget.depth == 5
        and all(budget.go_on(d, 0.1) for d in range(1, 5))
    )


@pytest.mark.parametrize(
    "given, match",
    [
        ({"depth": 65}, "depth"),
        ({"context": -1}, "context"),
        ({"trust": 0.0}, "trust"),
        ({"explore": 0}, "explore"),
    ],
)
def test_bad_input(given, match):
    with pytest.raises(ValueError, match=match):
        GoodputPolicy(PassCosts(), **given)
