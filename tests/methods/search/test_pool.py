"""A pool of texts: its controller and its weights as data, its budget, and what it reduces to."""

import math
import random
from itertools import product

import pytest

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.pool import (
    HypothesisPoolSearch,
    PoolController,
    PoolWindow,
    VoteWeights,
    is_vote_decided,
    window_similarity,
)
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.methods.search.loop.types import CandidateText
from polydec.methods.search.loop.vote import MajorityVotePicker, elect_answer, said_of
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from rollouts_reference import speaking

PROMPT = (0, 1, 0)
STILL = PoolController(interval=1000)
EQUAL = VoteWeights(0.0, 0.0)


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def window(tokens, sure=-1.0, unsure=0.5, lowest=-1.0):
    return PoolWindow(tuple(tokens), sure, unsure, lowest)


def test_likeness_is_of_pieces_of_four_tokens():
    assert window_similarity(window([1, 2, 3, 4, 5]), window([1, 2, 3, 4, 6])) == 1 / 3
    assert (
        window_similarity(window([1, 2]), window([1, 2])) == 1.0
        and window_similarity(window([1, 2]), window([2, 1])) == 0.0
    )


def test_an_unsure_pool_of_like_texts_grows_early_and_not_late():
    windows = [
        window([1, 2, 3, 4], unsure=0.6),
        window([1, 2, 3, 4], unsure=0.9),
        window([1, 2, 3, 4], unsure=0.3),
    ]
    control = PoolController(alike=1.0)  # worth of growing (1 - p) 0.6, of shrinking 0.4 p
    assert control.text_to_fork(0.0, windows) == 1 and control.text_to_fork(0.5, windows) == 1
    assert control.text_to_fork(0.7, windows) is None  # 0.18 against 0.28
    assert (
        control.text_to_fork(0.0, [window([1, 2, 3, 4]), window([5, 6, 7, 8])]) is None
    )  # they differ
    assert PoolController(alike=1.0, most=3).text_to_fork(0.0, windows) is None
    assert PoolController(alike=1.0, idle=0.61).text_to_fork(0.0, windows) is None


def test_a_sure_pool_loses_its_weakest_late():
    windows = [
        window([i] * 4, unsure=0.1, lowest=x) for i, x in enumerate((-1.0, -1.1, -5.0, -0.9, -0.2))
    ]
    assert PoolController(least=1).texts_to_drop(0.5, windows) == (2,)  # median -1.0, from it 0.1
    assert PoolController(least=1).texts_to_drop(0.05, windows) == ()  # 0.045 is not worth it
    assert PoolController(least=5).texts_to_drop(0.5, windows) == ()
    twins = [window([1, 2, 3, 4], sure=s, unsure=0.0) for s in (-0.3, -0.1, -0.2)]
    assert set(PoolController(least=1).texts_to_drop(0.5, twins)) == {0, 2}
    assert len(PoolController(least=2).texts_to_drop(0.5, twins)) == 1


def test_a_vote_weighs_what_is_sure_in_the_end_and_of_a_usual_length():
    some = [[-1.0] * 4, [-9.0, -9.0, -9.0, -0.5], [-1.0] * 8]
    assert EQUAL.of_logprobs(some) == [1.0, 1.0, 1.0]
    assert VoteWeights(2.0, 0.0).of_logprobs(some) == pytest.approx(
        [math.exp(-2), math.exp(-1), math.exp(-2)]
    )
    assert VoteWeights(0.0, 0.5).of_logprobs(some) == pytest.approx([1.0, 1.0, math.exp(-4)])


def test_equal_weights_are_the_majority():
    r = random.Random(3)
    for _ in range(80):
        tries = [
            CandidateText("\n".join(["x"] * r.randrange(3) + [r.choice("abc")]), (1,), -r.random())
            for _ in range(7)
        ]
        said = said_of(tries, "")
        assert elect_answer(
            tries, said, dict.fromkeys(said, 1.0)
        ) == MajorityVotePicker().pick_text(tries)
    tries = [CandidateText(c, (1,), -1.0) for c in "aab"]
    assert elect_answer(tries, said_of(tries, ""), {0: 0.2, 1: 0.2, 2: 0.5}) == 2


def test_a_vote_that_is_called_decided_is_whatever_the_others_say():
    """By brute force: some of those that live end at any length, as sure as can be, for any answer."""
    r, called = random.Random(5), 0
    for _ in range(400):
        weights = VoteWeights(r.choice((0.0, 1.0, 4.0)), r.choice((0.0, 0.5, 1.0)))
        ended = [[-r.random() / 4] * r.randrange(1, 9) for _ in range(r.randrange(2, 6))]
        said = {i: r.choice("aaab") for i in range(len(ended)) if r.random() < 0.9}
        least = [r.randrange(1, 10) for _ in range(r.randrange(1, 3))]
        bounds = weights.vote_bounds(ended, least, 12)
        if not (sure := is_vote_decided(said, bounds, len(least))):
            continue
        called += sure
        winners = set()
        for lengths in product(*((None, *range(low, 13)) for low in least)):
            more = [[0.0] * n for n in lengths if n is not None]
            found = weights.of_logprobs([*ended, *more])
            for i, (low, high) in enumerate(bounds):
                assert low - 1e-9 <= found[i] <= high + 1e-9
            for votes in product("abc", repeat=len(more)):
                all_said = said | {len(ended) + i: vote for i, vote in enumerate(votes)}
                total = {a: sum(found[i] for i in all_said if all_said[i] == a) for a in "abc"}
                winners.add(max(total, key=lambda a: total[a]))
        assert len(winners) == 1
    assert called > 40


def test_it_stops_when_the_vote_is_decided_and_the_answer_stays_the_same():
    saved = 0
    for seed in range(60):
        target, request = speaking(seed, sharp=1.5), Request(PROMPT, 9, seed=seed)
        whole, early = (
            run_coroutines(
                [
                    answer_one(
                        HypothesisPoolSearch(plain(target), STILL, EQUAL, tries=9, early=early),
                        request,
                    )
                ]
            )[0]
            for early in (False, True)
        )
        assert said_by(target, early) == said_by(target, whole)
        saved += whole.stats.written - early.stats.written
        assert early.stats.written <= whole.stats.written
    assert saved > 0


def said_by(target, result):
    return target.vocab.words.decode(result.token_ids)


def test_left_alone_it_is_self_consistency_draw_for_draw():
    for seed in range(10):
        target, request = toy_law(seed, 4, sharp=0.6), Request(PROMPT, 9, seed=seed)
        pool, votes = (
            HypothesisPoolSearch(plain(target), STILL, EQUAL, tries=3),
            RolloutSearch(plain(target), MajorityVotePicker(), 3, 3),
        )
        got, want = (run_coroutines([answer_one(d, request)])[0] for d in (pool, votes))
        assert got.token_ids == want.token_ids and got.stats == want.stats
    with pytest.raises(ValueError, match="tries is 0: it must lie in 1 to 64"):
        HypothesisPoolSearch(plain(target), tries=0)


def test_the_budget_is_kept_and_the_pool_is_changed_on_the_way():
    sizes, most = set(), 0
    for seed in range(30):
        target = toy_law(seed, 5, sharp=0.4)
        plan = HypothesisPoolSearch(
            plain(target), PoolController(2, 1, 6, 1.0, 0.0), EQUAL, tries=2, budget=40
        )
        found = run_coroutines(
            [run_decoder(plan, Request(PROMPT, 12, seed=seed, ignore_eos=seed % 2 == 1))]
        )[0][0]
        alone = 0 if found.stats.ended > 1 else 12  # the likeliest may go on where none has ended
        assert found.stats.written <= 40 + alone and len(found.token_ids) <= 12
        sizes.add(found.stats.written)
        most = max(most, found.stats.written)
    assert len(sizes) > 3 and most > 24  # two texts of 12 tokens: some were forked


class ScriptedController(PoolController):
    """At each look the first text of the pool is given up, or forked once: nothing is weighed."""

    drops, forks = False, False

    def text_to_fork(self, phase, windows):
        return 0 if self.forks and len(windows) == 1 else None

    def texts_to_drop(self, phase, windows):
        return (0,) if self.drops and len(windows) > 1 else ()


def test_a_fork_goes_on_where_its_text_stands_and_what_is_given_up_writes_no_more():
    class ForkingController(ScriptedController):
        forks = True

    class DroppingController(ScriptedController):
        drops = True

    target = toy_law(1, 5, sharp=0.4)
    written = {}
    for name, control, tries in (
        ("alone", STILL, 1),
        ("forked", ForkingController(3), 1),
        ("three", STILL, 3),
        ("dropped", DroppingController(1), 3),
    ):
        plan = HypothesisPoolSearch(plain(target), control, EQUAL, tries=tries)
        (found,) = run_coroutines([run_decoder(plan, Request(PROMPT, 9, ignore_eos=True))])[0]
        written[name] = found.stats.written
        assert len(found.token_ids) == 9
    # A fork behind three of nine tokens writes six; two of three texts end behind one and two.
    assert written == {"alone": 9, "forked": 9 + 6, "three": 27, "dropped": 1 + 2 + 9}


def test_a_sure_end_outvotes_more_texts():
    differ = 0
    for seed in range(40):
        target, request = speaking(seed, sharp=1.0), Request(PROMPT, 9, seed=seed)
        equal, weighed = (
            run_coroutines(
                [answer_one(HypothesisPoolSearch(plain(target), STILL, w, tries=5), request)]
            )[0]
            for w in (EQUAL, VoteWeights(50.0, 0.0))
        )
        assert equal.stats == weighed.stats
        differ += said_by(target, equal) != said_by(target, weighed)
    assert differ > 3
