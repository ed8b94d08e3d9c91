"""The bandit over depths: it finds the arm that recorded costs make best, tries others at times, and reads no clock."""

import time

import pytest

from polydec.base.errors import RequestError
from polydec.core.types import Draft
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.epsilon_greedy import EpsilonGreedyPolicy
from polydec.methods.speculative.policies.fixed import FixedPolicy

CHEAP = PassCosts((1.0, 1.02, 1.04, 1.06, 1.08), 0.02)
DEAR = PassCosts((1.0, 1.9, 2.8, 3.7, 4.6), 0.3)


def depths(policy, right, rounds=200):
    """The depths of some rounds of chains of which so many tokens are right."""
    state, out = policy.start_state(), []
    for _ in range(rounds):
        depth = policy.draft_budget(state).depth
        out.append(depth)
        path = tuple(range(1, 1 + min(depth, right)))
        state = policy.observe_round(state, Draft.chain_draft(0, (1,) * depth), Verdict(path, 2))
    return out


@pytest.mark.parametrize(
    "costs, right, best", [(CHEAP, 9, 8), (CHEAP, 2, 2), (CHEAP, 0, 0), (DEAR, 9, 0), (DEAR, 0, 0)]
)
def test_it_finds_the_arm_that_writes_most_for_its_cost(costs, right, best):
    """Brute force over the arms: tokens of a round over what it costs."""
    policy = EpsilonGreedyPolicy(costs)

    def tokens_per_ms(depth):
        ms = costs.request_share(1 + depth, 1, 256) + depth * costs.draft_ms
        return (1 + min(depth, right)) / ms

    assert max(policy.depths, key=tokens_per_ms) == best
    seen = depths(policy, right)
    assert seen[:5] == [0, 1, 2, 4, 8], "each arm is tried once first"
    assert seen[5:].count(best) >= 0.85 * len(seen[5:])


def test_other_arms_are_tried_as_often_as_epsilon_says():
    for epsilon in (0.0, 0.3, 1.0):
        policy = EpsilonGreedyPolicy(CHEAP, (0, 3), epsilon)
        others = depths(policy, 0, 1002)[2:].count(3) / 1000
        assert others == pytest.approx(epsilon / 2, abs=0.05)


def test_what_no_longer_pays_is_given_up_within_its_window():
    policy = EpsilonGreedyPolicy(CHEAP, (0, 4), 0.0, window=4)
    state, out = policy.start_state(), []
    for round_number in range(40):
        depth = policy.draft_budget(state).depth
        out.append(depth)
        got = depth if round_number < 20 else 0
        draft = Draft.chain_draft(0, (1,) * depth)
        state = policy.observe_round(state, draft, Verdict(tuple(range(1, 1 + got)), 2))
    assert set(out[2:20]) == {4} and set(out[24:]) == {0}


def test_no_clock_is_read(monkeypatch):
    expected = depths(EpsilonGreedyPolicy(CHEAP), 2)
    for name in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, name, None)
    assert depths(EpsilonGreedyPolicy(CHEAP), 2) == expected


def test_one_arm_is_a_fixed_depth():
    """Reduces to `fixed`, and to plain decoding."""
    assert set(depths(EpsilonGreedyPolicy(CHEAP, (0,)), 9)) == {0}
    assert set(depths(EpsilonGreedyPolicy(CHEAP, (3,)), 9)) == {3}
    policy = EpsilonGreedyPolicy(CHEAP, (3,))
    assert policy.draft_budget(policy.start_state()) == FixedPolicy(3).start_state()
    assert policy.draft_budget(policy.start_state()) == DraftBudget(3, 3)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"depths": ()}, "one or more, ascending"),
        ({"depths": (2, 1)}, "one or more, ascending"),
        ({"depths": (1, 1)}, "one or more, ascending"),
        ({"depths": (0, 65)}, "each must lie in 0 to 64"),
        ({"depths": (-1, 2)}, "each must lie in 0 to 64"),
        ({"epsilon": 1.5}, "epsilon is 1.5: it must lie in 0 to 1"),
        ({"window": 0}, "window is 0: it must be at least 1"),
        ({"context": -1}, "context is -1: it must be at least 0"),
    ],
)
def test_what_is_wrong_is_said(wrong, says):
    with pytest.raises(RequestError, match=says):
        EpsilonGreedyPolicy(PassCosts(), **wrong)
