"""What a check exercised is counted, and a check that exercised nothing fails."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, PrunedEvent
from polydec.core.types import Draft, TextEdit
from polydec.lab.testing.exercised_counts import (
    DRAFT_KINDS,
    ExercisedCollector,
    ExercisedCounts,
    missing_kinds,
    require_exercised,
    require_mechanism_exercised,
)
from polydec.lab.testing.toy import toy_law
from polydec.methods.diffusion.loop.events import RemaskedEvent
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.pearl import PearlDecoder
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier

TREE = (4, 5, 6, 7, 8), (-1, 0, 0, 1, 1)
"""Tokens and parents: two nodes below the root, and two below the first of them."""


def counted(*events):
    collector = ExercisedCollector()
    for event in events:
        collector(event)
    return collector.counts


def edited(*tokens, accepted=0):
    return EditedEvent(
        0, TextEdit(tuple(enumerate(tokens, 3))), tokens, ("",) * len(tokens), accepted
    )


def test_counts_add_up():
    one = ExercisedCounts(7, 3, 2, 5, 1, 1, 1)
    assert one + ExercisedCounts(laws=2) == ExercisedCounts(7, 3, 2, 5, 1, 1, 3)
    assert sum([one, one], ExercisedCounts()) == ExercisedCounts(14, 6, 4, 10, 2, 2, 2)
    assert one.sentence == (
        "1 laws enumerated, 7 tokens drafted, 3 accepted, 2 rejected, 5 edited, 1 pruned, 1 cut"
    )


@pytest.mark.parametrize(
    "path, probes, tokens, want",
    [
        ((1, 3), (), (5, 7, 9), ExercisedCounts(4, 2, 0, 3)),
        ((1,), (), (5, 9), ExercisedCounts(4, 1, 2, 2)),
        ((), (), (9,), ExercisedCounts(4, 0, 2, 1)),
        ((), (1, 3), (9,), ExercisedCounts(2, 0, 1, 1)),
        ((1,), (3, 4), (5, 9), ExercisedCounts(2, 1, 0, 2)),
        ((1, 3), (), (5,), ExercisedCounts(4, 2, 0, 1, 0, 1)),
    ],
    ids=["a leaf", "below a node", "at the root", "beside probes", "only probes", "an end"],
)
def test_a_round(path, probes, tokens, want):
    round_ = ProposedEvent(0, 3, *TREE, probes=probes), VerifiedEvent(0, 3, path, 9)
    assert counted(*round_, edited(*tokens, accepted=len(path))) == want


def test_a_round_that_ends_with_a_drafted_token():
    """PEARL tells the last accepted token as the one behind the path where nothing was drawn after it."""
    round_ = ProposedEvent(0, 3, *TREE), VerifiedEvent(0, 3, (1,), 8)
    assert counted(*round_, edited(5, 8, accepted=2)) == ExercisedCounts(4, 2, 0, 2)


def test_what_is_given_up():
    assert counted(PrunedEvent(0, 1), RemaskedEvent(0, 1, (4, 5), (0.5, 0.5), ("", ""))).pruned == 3


def test_a_round_without_events():
    collector = ExercisedCollector()
    draft = Draft(TREE[0], TREE[1], (None,) * 5, (None,) * 5, (False, False, False, True, False))
    collector.count_round(draft, Verdict((1,), 9))
    assert collector.counts == ExercisedCounts(3, 1, 1)


@pytest.mark.parametrize(
    "decoder",
    [
        SpeculativeDecoder(toy_law(2, 4), LookupDrafter(), MatchVerifier(), FixedPolicy(4)),
        PearlDecoder(toy_law(2, 4), toy_law(2, 4, sharp=0.7, cost=0.1), ExactVerifier(), 2),
    ],
    ids=["speculative", "pearl"],
)
def test_counts_are_those_of_the_statistics(decoder):
    collector = ExercisedCollector()
    for seed in range(8):
        before = collector.counts
        request = Request((0, 1, 0, 1, 2, 0, 1), 24, seed=seed, ignore_eos=True)
        stats = run_coroutines([answer_one(decoder, request, on=collector)])[0].stats
        got = collector.counts.drafted - before.drafted, collector.counts.accepted - before.accepted
        assert got == (stats.drafted, stats.accepted)
    assert collector.counts.rejected and collector.counts.accepted
    assert collector.counts.edited == 8 * 24


def test_a_check_that_exercised_nothing_fails():
    require_exercised(ExercisedCounts(5, 3, 2), "it")
    for name in ("drafted", "accepted", "rejected"):
        counts = ExercisedCounts(**{**{"drafted": 5, "accepted": 3, "rejected": 2}, name: 0})
        with pytest.raises(AssertionError, match=f"it does not exercise .* 0 {name}"):
            require_exercised(counts, "it")
        require_exercised(counts, "it", reasons={name: "it never does"})
    with pytest.raises(AssertionError, match=r"0 pruned \(of 4 laws enumerated") as failed:
        require_exercised(ExercisedCounts(laws=4), "it", ("pruned",))
    assert str(failed.value).endswith("card, says why: {'pruned': 'one sentence'}")


def test_a_reason_must_be_true():
    with pytest.raises(AssertionError, match="counts 2 rejected, though it declares"):
        require_exercised(ExercisedCounts(5, 3, 2), "it", reasons={"rejected": "it never does"})


@pytest.mark.parametrize("where", ["class", "instance"])
def test_a_mechanism_says_itself_why_something_never_happens(where):
    made = type("Made", (), {})()
    with pytest.raises(AssertionError, match=r"Made does not exercise .* 0 rejected"):
        require_mechanism_exercised(ExercisedCounts(5, 3), made, DRAFT_KINDS)
    (type(made) if where == "class" else made).unexercised = {
        "rejected": "it never does",
        "moved": "a name of another contract",
    }
    require_mechanism_exercised(ExercisedCounts(5, 3), made, DRAFT_KINDS)
    with pytest.raises(AssertionError, match="0 edited and 0 pruned and 0 cut and 0 laws"):
        require_mechanism_exercised(ExercisedCounts(5, 3), made)


def test_what_is_missing():
    counts = ExercisedCounts(drafted=5)
    assert missing_kinds(counts) == ("accepted", "rejected")
    assert missing_kinds(counts, reasons={"rejected": "it never does"}) == ("accepted",)
    assert missing_kinds(counts, ("drafted",)) == ()
