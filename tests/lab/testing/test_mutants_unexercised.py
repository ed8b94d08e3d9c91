"""Searches and rollouts in which what their contract is there for never happens: it says so."""

import pytest

from polydec.lab.testing.check_inserting import check_replay, last_slot_inserter
from polydec.lab.testing.check_rollouts import RolloutCounts, check_rollouts
from polydec.lab.testing.check_search import check_search, counted_branches
from polydec.lab.testing.exercised_counts import require_exercised
from polydec.lab.testing.kits import build
from polydec.methods.search.loop.rollouts import RolloutSearch
from reasoned import Reasoned
from rollouts_reference import plain


def test_a_search_that_follows_one_text_says_so():
    def undeclared(target):
        return Reasoned(build("contrastive-search", target, None, {})[0], {})

    with pytest.raises(AssertionError, match="0 branched and 0 pruned and 0 scored and 0 tied "):
        check_search(undeclared, 1)


def test_a_trace_without_branches_counts_none():
    assert counted_branches([], 2).sentence == (
        "2 answers, 0 branched, 0 pruned, 0 scored, 0 tied, 0 refused"
    )


def test_rollouts_that_try_one_text_say_so():
    with pytest.raises(AssertionError, match="0 branched and 0 distinct"):
        require_exercised(RolloutCounts(8), "a check of rollouts", ("branched", "distinct"))


class FirstText:
    """Takes the first text, whatever the others are."""

    def pick_text(self, tries):
        return 0


def test_rollouts_that_always_take_the_first_text_say_so():
    with pytest.raises(AssertionError, match="0 picked over first"):
        check_rollouts(lambda target: RolloutSearch(plain(target), FirstText(), 2, 2))


def test_texts_that_only_grow_at_their_end_count_no_insertion():
    made = build("insertion-language-models", last_slot_inserter(3, 2))[0]
    counts = check_replay(lambda _: made)
    assert counts.answers == 6
    with pytest.raises(AssertionError, match="0 inserted"):
        require_exercised(counts, "a check of insertion", ("inserted",))
