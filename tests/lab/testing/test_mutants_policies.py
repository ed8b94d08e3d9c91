"""Faults of policies and of verifiers that a contract must catch: budgets that never move, and paths of another rule."""

from dataclasses import dataclass, replace

import pytest

from polydec.lab.testing.check_policy import check_policy
from polydec.lab.testing.check_verifier import check_verifier
from polydec.lab.testing.examples import example_mechanism
from polydec.methods.registry import registry
from verifiers_reference import RULES, example_verifier

POLICIES = registry.mechanism_classes("policies")
MOVING = sorted(set(POLICIES) - {"fixed", "confidence"})


@dataclass(frozen=True)
class Still:
    """A policy that keeps its first state."""

    inner: object

    def start_state(self):
        return self.inner.start_state()

    def draft_budget(self, state):
        return self.inner.draft_budget(state)

    def observe_round(self, state, draft, verdict):
        return state


@dataclass(frozen=True)
class Alone(Still):
    """A policy of batches that never hears of one."""

    def joined_width(self, state, sequences):
        return self.inner.joined_width(state, 1)


@pytest.mark.parametrize("name", MOVING)
def test_a_policy_that_never_moves(name):
    policy = example_mechanism(POLICIES[name])
    check_policy(policy)
    with pytest.raises(AssertionError, match="0 moved"):
        check_policy((Alone if hasattr(policy, "joined_width") else Still)(policy))


class WritesToStates(Still):
    """A policy whose states are lists that it writes to."""

    def start_state(self):
        return [self.inner.start_state()]

    def draft_budget(self, state):
        return self.inner.draft_budget(state[0])

    def observe_round(self, state, draft, verdict):
        state[0] = self.inner.observe_round(state[0], draft, verdict)
        return state


def test_a_policy_that_writes_to_its_state():
    with pytest.raises(AssertionError, match=r"written to|observed twice"):
        check_policy(WritesToStates(example_mechanism(POLICIES["additive"])))


def shorter(verdict, draft):
    """The last accepted node is taken as what follows the others."""
    if not verdict.path:
        return verdict
    return replace(verdict, path=verdict.path[:-1], bonus=draft.token[verdict.path[-1]])


def last_child(verdict, draft):
    """Of siblings the last one, in place of the one that was accepted."""
    if not verdict.path:
        return verdict
    above = draft.parent[verdict.path[-1]]
    return replace(verdict, path=(*verdict.path[:-1], draft.children[above][-1]))


@dataclass(frozen=True)
class AnotherPath:
    inner: object
    change: object

    @property
    def exactness(self):
        return self.inner.exactness

    def verify_draft(self, draft, scores, rng, position):
        return self.change(self.inner.verify_draft(draft, scores, rng, position), draft)


@pytest.mark.parametrize("change", [shorter, last_child])
@pytest.mark.parametrize("name", RULES)
def test_a_verifier_that_chooses_another_path(name, change):
    verifier = example_verifier(name)
    with pytest.raises(AssertionError, match="published rule"):
        check_verifier(AnotherPath(verifier, change), rule=RULES[name](verifier))


@pytest.mark.parametrize(
    "name, setting",
    [
        ("near_best", {"top": 1}),
        ("near_best", {"tolerance": 0.5}),
        ("judged", {"threshold": 1.0}),
        ("lenient", {"lenience": 0.6}),
    ],
)
def test_a_verifier_with_another_bound(name, setting):
    verifier = example_verifier(name)
    with pytest.raises(AssertionError, match="published rule"):
        check_verifier(replace(verifier, **setting), rule=RULES[name](verifier))
