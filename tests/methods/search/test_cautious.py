"""CNTP against its card."""

import math
from dataclasses import replace

import pytest

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.cautious import CautiousSearch
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT = (0, 1, 0)


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def law(target, text):
    async def row():
        return (
            await target.open_session((*PROMPT, *text)).score_draft(
                Draft.chain_draft((*PROMPT, *text)[-1]), ScoreRequest()
            )
        ).logprob_row(0)

    return run_coroutines([row()])[0].exp().double()


LETTERS = ("a", ",", "b", ".", "")
"""How the five tokens of a toy read; the last one ends the text."""


def reference(target, length, least, most, low, high, longest, rng, letters=("",) * 5):
    """The loop of the card, over tokens that read as letters: a trial ends with its own first token of punctuation."""
    text, over = (), lambda t: len(t) == length or (t and t[-1] in target.vocab.eos)
    while not over(text):
        p_V, at = law(target, text), len(PROMPT) + len(text)
        entropy = -sum(p * math.log(p) for p in p_V.tolist() if p)
        count = int(least + (most - least) * min(1, max(0, (entropy - low) / (high - low))))
        if count == 1:
            text = (*text, rng.child_stream("token", at).draw_categorical(p_V))
            continue
        tried = []
        for i in range(count):
            more, logp, mine = (), 0.0, rng.child_stream("trial", at, i)
            while not more or not (
                over((*text, *more)) or len(more) == longest or letters[more[-1]] in (",", ".")
            ):
                q_V = law(target, (*text, *more))
                x = mine.child_stream("token", at + len(more)).draw_categorical(q_V)
                more, logp = (*more, x), logp + math.log(q_V[x])
            tried.append((logp / len(more), -i, more))
        text = (*text, *max(tried)[2])
    return text


def test_it_is_the_search_of_its_card():
    for seed in range(16):
        options = {
            "least": 1 + seed % 2,
            "most": 4,
            "low": 0.4,
            "high": 1.4,
            "longest": 1 + seed % 3,
        }
        target = toy_law(seed, 5, sharp=1.0)
        got = run_coroutines(
            [run_decoder(CautiousSearch(plain(target), **options), Request(PROMPT, 8, seed=seed))]
        )[0][0]
        assert got.token_ids == reference(target, 8, **options, rng=Rng.of_choice(seed)), seed


@pytest.mark.parametrize("options", [{"most": 1}, {"low": 50.0, "high": 60.0}])
def test_one_trial_is_plain_decoding(options):
    for seed in range(6):
        target, request = toy_law(seed, 6), Request(PROMPT, 12, seed=seed)
        assert (
            run_coroutines([answer_one(CautiousSearch(plain(target), **options), request)])[
                0
            ].token_ids
            == run_coroutines([answer_one(plain(target), request)])[0].token_ids
        )


def test_the_law_with_one_trial():
    target = toy_law(2, 3)
    got = law_of(
        lambda rng: answer_one(CautiousSearch(plain(target), most=1), Request(PROMPT, 3), rng)
    )
    assert text_law_distance(got, target_law(target, PROMPT, 3)) < 1e-9


def test_how_many_trials():
    cautious = CautiousSearch(plain(toy_law(1)))
    assert [cautious.trial_count(h) for h in (0.0, 0.01, (0.01 + 1.5) / 2, 1.499, 1.5, 9.0)] == [
        1,
        1,
        5,
        9,
        10,
        10,
    ]


def test_a_trial_ends_with_punctuation():
    """Of letters alone it runs to the limit; where every letter is a comma it is one token long."""
    target = toy_law(4, 5, sharp=0.3, eos=-1)
    for letter, fed in (("a", 1 + 4 * 11), (",", 12)):
        words = replace(target.vocab.words, of=(letter,) * 5)
        cautious = CautiousSearch(plain(With(target, replace(target.vocab, words=words))), 4, 4)
        result = run_coroutines([run_decoder(cautious, Request(PROMPT, 12))])[0][0]
        assert (result.stats.scored, result.stats.passes, result.stats.written) == (fed, 12, 4 * 12)


def test_punctuation_that_stood_before_a_trial_does_not_end_it():
    """20 texts: single tokens and trials in turn, and whatever was written before a trial counts for nothing in it."""
    options = {"least": 1, "most": 4, "low": 0.6, "high": 1.6, "longest": 6}
    for seed in range(20):
        target = toy_law(seed, 5, sharp=1.3, eos=4)
        words = replace(target.vocab.words, of=LETTERS)
        cautious = CautiousSearch(
            plain(With(target, replace(target.vocab, words=words))), **options
        )
        got = run_coroutines([run_decoder(cautious, Request(PROMPT, 16, seed=seed))])[0][0]
        assert got.token_ids == reference(
            target, 16, **options, rng=Rng.of_choice(seed), letters=LETTERS
        ), seed


class With:
    """A target with other words."""

    def __init__(self, target, vocab):
        self.target, self.vocab, self.layers, self.open_session = (
            target,
            vocab,
            target.layers,
            target.open_session,
        )
