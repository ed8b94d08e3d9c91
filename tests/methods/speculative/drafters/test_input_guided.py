"""Aggressive decoding: the place in the source, and how it is found again."""

import random

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.input_guided import PRIOR, InputGuidedDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from reasoned import Reasoned

TEXT = (10, 11, 12, 13, 14, 10, 15, 11, 12, 16)


def propose(guess, depth=64):
    return run_coroutines([guess.propose_draft(0, 9, DraftBudget(depth, depth), Rng.of_choice(0))])[
        0
    ]


def after(guess, *tokens):
    for x in tokens:
        guess.push_token(x)
    return propose(guess).token[1:]


@pytest.mark.parametrize("near", [False, True])
def test_a_place_that_is_unambiguous_is_found(near):
    assert after(InputGuidedDrafter(near=near).open_guess(TEXT, None), 14) == TEXT[5:]
    assert after(InputGuidedDrafter(near=near).open_guess(TEXT, None), 11) == ()  # twice
    assert (
        after(InputGuidedDrafter(near=near).open_guess(TEXT, None), 15, 11) == TEXT[8:]
    )  # the copy went on
    assert after(InputGuidedDrafter(near=near).open_guess(TEXT, None), 99) == ()


def test_by_two_and_three_tokens():
    text = (1, 2, 3, 7, 2, 3, 8, 1, 3, 9)
    assert (
        after(InputGuidedDrafter().open_guess(text, None), 99, 3) == ()
    )  # three times; 99 3 does not occur
    assert after(InputGuidedDrafter().open_guess(text, None), 1, 3) == (9,)
    assert (
        after(InputGuidedDrafter().open_guess(text, None), 2, 3) == ()
    )  # twice as two, and no third
    assert after(InputGuidedDrafter().open_guess(text, None), 1, 2, 3) == (7, 2, 3, 8, 1, 3, 9)


def test_realignment_equals_brute_force():
    dice = random.Random(2)
    for _ in range(300):
        text = tuple(dice.randrange(5) for _ in range(dice.randint(1, 14)))
        guess = InputGuidedDrafter().open_guess(text, None)
        out = [dice.randrange(6) for _ in range(dice.randint(1, 4))]
        guess.place.last = tuple(out[-3:])
        want = None
        for n in range(1, len(out[-3:]) + 1):
            ends = [e for e in range(n, len(text) + 1) if list(text[e - n : e]) == out[-n:]]
            if len(ends) == 1:
                want = ends[0], n
            if len(ends) != 1 and ends:
                continue
            break
        assert guess._unique() == want


def test_the_first_pass_copies_the_source_where_asked_to():
    assert (
        propose(InputGuidedDrafter(eager=True, block=4).open_guess(TEXT, None)).token[1:]
        == TEXT[:4]
    )
    assert propose(InputGuidedDrafter().open_guess(TEXT, None)).token == (0,)
    assert (
        propose(InputGuidedDrafter(2, -1, eager=True).open_guess(TEXT, None)).token[1:]
        == TEXT[2:-1]
    )


def test_near_the_place_that_was_left():
    def edited(*tokens):
        return after(InputGuidedDrafter(near=True, eager=True).open_guess(TEXT, None), *tokens)

    assert edited(10, 11, 99) == TEXT[3:6]  # one was replaced: guessed, three tokens at most
    assert edited(10, 11, 99, 98) == TEXT[4:7]  # two were
    assert edited(10, 11, 99, 13) == TEXT[4:]  # it was so: the copy goes on
    assert edited(10, 11, 99, 12) == TEXT[3:]  # one was put in: 12 stands nearest there
    assert edited(10, 11, 12, 14) == TEXT[5:]  # one was left out
    assert edited(10, 11, 12, 13, 14, 10, 15, 99, 12) == TEXT[9:]  # of two places the nearer one
    assert edited(10, 99, 98, 97, 96) == ()  # lost
    assert edited(10, 99, 98, 97, 96, 15, 11) == TEXT[8:]  # and found again
    published = after(InputGuidedDrafter(eager=True).open_guess(TEXT, None), 10, 11, 99)
    assert published == ()


def test_chance_follows_what_agreed():
    guess = InputGuidedDrafter(eager=True).open_guess(TEXT, None)
    assert propose(guess).chance == (1.0, *PRIOR, PRIOR[-1])
    guess.learn_round(Draft.chain_draft(0, TEXT[:2]), None, Verdict((1, 2), 99))
    assert guess.rates.tried[:4] == [1, 1, 1, 0] and guess.rates.right[:4] == [1, 1, 0, 0]
    assert guess.agreement_chance(2) == pytest.approx(4 * PRIOR[2] / 5)


def test_the_identity_takes_one_pass():
    target = toy_law(3, 20, eos=-1)
    target.network.weight[:] = -50.0
    for a in range(20):
        target.network.weight[:, a, (a + 1) % 20] = 50.0
    drafter = InputGuidedDrafter(stop=-1, eager=True, block=64)
    out = run_coroutines(
        [
            answer_one(
                SpeculativeDecoder(target, drafter, MatchVerifier(), FixedPolicy(64)),
                Request((*range(10), 19), max_tokens=11),
            )
        ]
    )[0]
    assert out.token_ids == (*range(10), 10) and out.stats.passes == 1


@pytest.mark.parametrize(
    "drafter, reasons",
    [
        (InputGuidedDrafter(near=True), {}),
        (InputGuidedDrafter(eager=True), {}),
        (
            InputGuidedDrafter(1, -1, True, True, 3),
            {"distinct": "the contract's texts begin alike, which is all that it reads"},
        ),
        (
            InputGuidedDrafter(90, 95),
            dict.fromkeys(
                ("drafted", "accepted", "rejected", "proposing", "distinct", "learned"),
                "the contract's prompts end before what it reads",
            ),
        ),
    ],
    ids=str,
)
def test_contract(record_counts, drafter, reasons):
    record_counts(check_drafter(Reasoned(drafter, reasons)))


def test_a_copy_may_be_as_long_as_its_source():
    """As published, all of the rest in one pass; beyond 64 tokens as well."""
    source = tuple(range(1, 201))
    guess = InputGuidedDrafter(eager=True, block=1024).open_guess(source, None)
    assert propose(guess, 1024).token[1:] == source
    decoder = build("aggressive-decoding", toy_law(0, 5), None, {"block": 200, "cost_aware": False})
    assert decoder[0].policy.depth == 200 and decoder[0].drafter.block == 200


def test_bad_options():
    with pytest.raises(ValueError, match="block is 0: it must lie in 1 to 1024"):
        InputGuidedDrafter(block=0)


@pytest.mark.parametrize("start, stop", [(5, 2), (3, 3), (0, 0), (-2, -2)])
def test_an_end_before_the_start_is_refused(start, stop):
    with pytest.raises(
        ValueError, match=f"stop is {stop}: it must lie behind start, which is {start}"
    ):
        InputGuidedDrafter(start, stop)
