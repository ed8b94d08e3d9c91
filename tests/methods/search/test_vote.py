"""Votes among texts, as data."""

import random
from collections import Counter

import pytest

from polydec.lab.testing.toy import ToyWords
from polydec.methods.search.loop.best_of import BestOfPicker
from polydec.methods.search.loop.types import CandidateText, StepBoundary, answer_of
from polydec.methods.search.loop.vote import MajorityVotePicker, count_steps


def tried(said, mean=-1.0, value=None):
    return CandidateText(said, (1,), mean, value)


def chain(answer, length, mean=-1.0):
    return tried(
        "\n".join([*(f"step {i}" for i in range(length)), f"the answer is {answer}."]), mean
    )


@pytest.mark.parametrize(
    "said, mark, answer",
    [
        ("2+3=5\n=5", "", "=5"),
        ("so\n  The answer is 7.\n", "answer is", "7"),
        ("answer is 3, no: answer is 4", "answer is", "4"),
        ("no mark here\n12", "answer is", "12"),
        ("", "", ""),
        ("\n\n", "x", ""),
        ("Yes.", "", "yes"),
    ],
)
def test_what_a_text_answers(said, mark, answer):
    assert answer_of(said, mark) == answer


def test_a_reward_weighs_the_votes():
    tries = [
        tried("=1", value=0.3),
        tried("=1", value=0.4),
        tried("=2", value=0.6),
        tried("=1", value=0.1),
    ]
    assert (
        MajorityVotePicker().pick_text(tries) == 1
        and MajorityVotePicker().pick_text(tries[:1] + tries[2:]) == 1
    )
    rng = random.Random(3)
    for _ in range(50):
        said = [(f"={rng.randrange(3)}", rng.random()) for _ in range(6)]
        sums = Counter()
        for answer, value in said:
            sums[answer] += value
        got = MajorityVotePicker().pick_text([tried(a, value=v) for a, v in said])
        best = max(sums, key=sums.get)
        assert said[got] == max((a, v) for a, v in said if a == best)
        same = [tried(a, value=0.5) for a, _ in said]
        assert MajorityVotePicker().pick_text(same) == MajorityVotePicker().pick_text(
            [tried(a) for a, _ in said]
        )


def test_the_majority_wins_and_its_likeliest_text_speaks_for_it():
    tries = [chain(1, 2, -0.1), chain(2, 2, -3.0), chain(2, 2, -2.0), chain(3, 2, -0.2)]
    assert MajorityVotePicker("answer is").pick_text(tries) == 2


def test_all_voters_are_plain_majority():
    r = random.Random(0)
    for _ in range(60):
        tries = [chain(r.randrange(3), r.randrange(1, 5), r.random()) for _ in range(9)]
        votes = Counter(answer_of(t.said, "is") for t in tries)
        got = answer_of(tries[MajorityVotePicker("is", 9).pick_text(tries)].said, "is")
        assert votes[got] == max(votes.values()) and MajorityVotePicker("is", 9).pick_text(
            tries
        ) == MajorityVotePicker("is", 0).pick_text(tries)


def test_of_the_most_complex_the_longest_alone():
    tries = [chain(1, 3), chain(2, 5), chain(1, 3), chain(3, 5)]
    assert MajorityVotePicker("is", 1).pick_text(tries) == 1  # of equal ones the one begun first
    assert (
        MajorityVotePicker("is", 2).pick_text(tries) == 1
        and MajorityVotePicker("is", 4).pick_text(tries) == 0
    )


def test_as_many_votes_go_to_the_answer_with_more_steps():
    assert (
        MajorityVotePicker("is").pick_text([chain(1, 2), chain(2, 4)]) == 1
        and MajorityVotePicker("is").pick_text([chain(1, 2), chain(2, 2)]) == 0
    )


def test_texts_without_an_answer_do_not_vote():
    tries = [tried(""), tried("\n"), chain(5, 1), tried("")]
    assert (
        MajorityVotePicker().pick_text(tries) == 2
        and MajorityVotePicker("", 1).pick_text(tries) == 2
    )
    assert MajorityVotePicker().pick_text([tried("", -2.0), tried("", -1.0)]) == 1


def test_the_best_by_reward_or_by_likelihood():
    assert BestOfPicker().pick_text([tried("a", -1.0), tried("b", -0.5), tried("c", -0.5)]) == 1
    assert BestOfPicker().pick_text([tried("a", -1.0, 0.9), tried("b", -0.5, 0.2)]) == 0


def test_steps():
    assert count_steps("a\n\n b\n") == 2 and count_steps("") == 0
    words = ToyWords(("a", "b\nc", "|"))
    ends = StepBoundary(("\n", "|"), 3, words)
    assert [ends.closes_step(t) for t in ((0,), (0, 1), (2,), (0, 0), (0, 0, 0))] == [
        False,
        True,
        True,
        False,
        True,
    ]
    with pytest.raises(ValueError, match="keep is -1: it must be at least 0"):
        MajorityVotePicker("", -1)
