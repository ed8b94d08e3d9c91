"""The contract of policies."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from polydec.core.types import Draft
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.methods.speculative.loop.protocols import Policy
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

PHASE = 12
"""Rounds of a history in which drafts fare alike."""
CHANCES = tuple(i / 100 for i in range(101))

Shown = tuple[int, int, int, bool, tuple[bool, ...]]
"""What a budget says: its three sizes, whether it is graded, and whether to go on behind each of
CHANCES.
"""


@dataclass
class PolicyCounts(ContractCounts):
    """What a check saw a policy do.

    Attributes:
        rounds: Rounds of all histories.
        accepted: Drafts that were accepted as a whole.
        rejected: Drafts that were rejected as a whole.
        moved: Budgets that were others than the first.
        stopping: Budgets that end a draft at some chance and not at another.
        joined: Rounds in which the policy was given the number of sequences that share them.
    """

    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    moved: int = 0
    stopping: int = 0
    joined: int = 0


def check_policy(policy: Policy[Any]) -> PolicyCounts:
    """Check everything that a policy promises.

    Budgets are legal and follow from what was observed alone, and the policy was seen to move:
    drafts as long as it lets them be are accepted as a whole for a time, then rejected, then one or
    the other, while batches grow and shrink. States are never written to; a graded budget ends a
    draft somewhere. A class attribute `unexercised` of the policy says, by the name of a count
    (PolicyCounts), why that is 0.

    Args:
        policy: The policy.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    counts = PolicyCounts()
    # Twice the same history: a policy that reads a clock, or anything else, differs.
    runs = [_run(policy, counts) for _ in range(2)]
    assert runs[0] == runs[1], "the same history gave other budgets"
    counts.moved = len(set(runs[0])) - 1
    wanted = ["accepted", "rejected", "moved"]
    wanted += ["stopping"] * any(shown[3] for shown in runs[0])
    wanted += ["joined"] * hasattr(policy, "joined_width")
    require_mechanism_exercised(counts, policy, wanted)
    return counts


def _shown(policy: Policy[Any], state: Any) -> Shown:
    """What a state allows; a budget is asked once, as it may count the nodes of its draft."""
    budget = policy.draft_budget(state)
    assert budget.depth >= 0 and budget.nodes >= 0 and budget.width >= 1, f"{budget} is not legal"
    # A new budget for each chance: `go_on` may count the nodes that it was asked for.
    on = tuple(bool(policy.draft_budget(state).go_on(1, q)) for q in CHANCES)
    return budget.depth, budget.nodes, budget.width, budget.graded, on


def _run(policy: Policy[Any], counts: PolicyCounts) -> list[Shown]:
    dice = random.Random(7)
    state = policy.start_state()
    seen = list[Shown]()
    joined = getattr(policy, "joined_width", None)
    for i in range(5 * PHASE):
        if joined is not None:
            # One sequence for half a phase, then eight, so that a phase has both.
            sequences = 1 + 7 * (i // (PHASE // 2) % 2)
            told = joined(state, sequences)
            # The same question twice: a policy may hold no state outside of what it is given.
            assert _shown(policy, told) == _shown(policy, joined(state, sequences)), (
                "one state and as many sequences gave two budgets"
            )
            state = told
            counts.joined = counts.joined + 1
        shown = _shown(policy, state)
        assert shown == _shown(policy, state), "one state gave two budgets"
        seen.append(shown)
        counts.rounds += 1
        counts.stopping += len(set(shown[4])) > 1
        draft = _drafted(policy.draft_budget(state), dice)
        most = len(draft) - 1
        # A phase of acceptance, one of rejection, one of acceptance, one of either, one of anything
        # between.
        took = (most, 0, most, dice.choice((0, most)), dice.randint(0, most))[i // PHASE]
        counts.accepted += took == most > 0
        counts.rejected += not took and most > 0
        verdict = Verdict(tuple(range(1, 1 + took)), 2)
        after = policy.observe_round(state, draft, verdict)
        # States are values: observing a round twice from one state gives the same, and leaves the
        # state as it is.
        again = policy.observe_round(state, draft, verdict)
        assert _shown(policy, after) == _shown(policy, again), (
            "the same round, observed twice, gave other budgets"
        )
        assert shown == _shown(policy, state), "a state was written to by what came after it"
        state = after
    return seen


def _drafted(budget: DraftBudget, dice: random.Random) -> Draft:
    """A chain as long as the budget lets it be, of a drafter that is rather sure."""
    chances = [1.0]
    most = min(budget.depth, budget.nodes)
    while len(chances) <= most:
        chances.append(dice.choice((0.97, 0.9, 0.9, 0.85, 0.6)))
        if not budget.go_on(len(chances) - 1, chances[-1]):
            break
    n = len(chances)
    return Draft.certain_tree((0, *[1] * (n - 1)), range(-1, n - 1), chances)
