"""Prompt lookup: the index, the copies, and what they are good for."""

import random

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.lookup import PRIOR, LookupDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


def propose(guess, depth=4):
    return run_coroutines(
        [
            guess.propose_draft(
                guess.windows.text[-1],
                len(guess.windows.text),
                DraftBudget(depth, depth),
                Rng.of_choice(0),
            )
        ]
    )[0].token[1:]


def by_scanning(text, how, depth):
    """The same proposal by looking through the whole text."""
    end = len(text)
    for n in range(min(how.max_ngram, end - 1), how.min_ngram - 1, -1):
        ends = [e for e in range(n, end) if text[e - n : e] == text[end - n :]]
        if ends:
            start = ends[0] if how.first else ends[-1]
            depth = min(depth, how.growth * n) if how.growth else depth
            copied = text[start : start + depth]
            while how.loop and len(copied) < depth:
                copied = [*copied, copied[len(copied) - (end - start)]]
            return tuple(copied)
    return ()


@pytest.mark.parametrize(
    "how",
    [LookupDrafter(3, 1, first, loop) for first in (False, True) for loop in (False, True)]
    + [
        LookupDrafter(5, 2),
        LookupDrafter(1, 1),
        LookupDrafter(5, 1, growth=1),
        LookupDrafter(4, 1, loop=False, growth=2),
    ],
    ids=str,
)
def test_index_equals_a_scan(how):
    dice = random.Random(1)
    for _ in range(170):
        text = [dice.randrange(dice.choice((2, 3, 6))) for _ in range(dice.randint(1, 40))]
        cut = dice.randint(1, len(text))
        guess = how.open_guess(text[:cut], None)
        for x in text[cut:]:
            assert propose(guess) == by_scanning(guess.windows.text, how, 4)
            guess.learn_round(Draft.chain_draft(guess.windows.text[-1]), None, Verdict((), x))
        assert guess.windows.text == text and propose(guess) == by_scanning(text, how, 4)


def test_learns_the_accepted_path_and_the_bonus():
    guess = LookupDrafter().open_guess((1, 2), None)
    guess.learn_round(Draft.chain_draft(2, (5, 6, 7)), None, Verdict((1, 2), 9))
    assert guess.windows.text == [1, 2, 5, 6, 9]


def test_a_copy_goes_round_or_stops():
    assert propose(LookupDrafter().open_guess((1, 2, 1, 2), None), 7) == (1, 2, 1, 2, 1, 2, 1)
    assert propose(LookupDrafter(loop=False).open_guess((1, 2, 1, 2), None), 7) == (1, 2)


def test_a_longer_match_is_copied_further():
    assert propose(LookupDrafter(growth=2).open_guess((1, 2, 9, 3, 2), None), 7) == (9, 3)
    assert propose(LookupDrafter(growth=2).open_guess((1, 2, 9, 3, 1, 2), None), 7) == (9, 3, 1, 2)


def test_a_cycle_is_copied_whole():
    target = toy_law(3, 4, eos=-1)
    target.network.weight[:] = -50.0
    for a in range(4):
        target.network.weight[:, a, (a + 1) % 4] = 50.0
    decoder = SpeculativeDecoder(target, LookupDrafter(), MatchVerifier(), FixedPolicy(6))
    out = run_coroutines([answer_one(decoder, Request((0, 1, 2, 3, 0), max_tokens=70))])[0]
    assert out.stats.passes == 10 and out.stats.accepted == 60


def test_no_draft_without_an_earlier_occurrence():
    assert propose(LookupDrafter().open_guess((1, 2, 3, 4), None)) == ()
    assert propose(LookupDrafter(3, 2).open_guess((1, 2, 7, 2), None)) == ()


def test_chance_follows_the_length_of_the_match_and_what_was_right():
    def chances(guess):
        return run_coroutines(
            [guess.propose_draft(guess.windows.text[-1], 9, DraftBudget(3, 3), Rng.of_choice(0))]
        )[0].chance

    guess = LookupDrafter(5).open_guess((1, 2, 3, 4, 9, 1, 2), None)
    assert chances(guess) == (1.0, *PRIOR[1:4])  # a match of two, then of three, of four
    guess.learn_round(Draft.chain_draft(2), None, Verdict((), 3))
    guess.learn_round(Draft.chain_draft(3), None, Verdict((), 7))
    assert guess.rates.tried[2:4] == [1, 1] and guess.rates.right[2:4] == [1, 0]
    assert guess.match_chance(2) == pytest.approx((1 + 4 * PRIOR[1]) / 5) and guess.match_chance(
        3
    ) == pytest.approx(4 * PRIOR[2] / 5)
    assert (
        LookupDrafter(2).open_guess((1, 2, 3, 4, 9, 1, 2), None).match_chance(9) == PRIOR[1]
    )  # matches of two are all it knows
