"""The tests of a law: even where it is kept, loud where it is not, and as sharp as they say."""

import numpy as np
import pytest

from polydec import load
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, OpenedEvent
from polydec.core.types import Draft, ScoreRequest, TextEdit
from polydec.lab.bench import sampled_laws
from polydec.lab.bench.certificate import content_digest
from polydec.lab.bench.chance import (
    as_often,
    chi_square_critical_value,
    chi_square_noncentrality,
    chi_square_tail,
    two_sided,
)
from polydec.lab.bench.forced import token_fate
from polydec.lab.bench.places import TokenPlace, TokenPlaceObserver
from polydec.lab.bench.sampled_laws import (
    ALARM,
    CELLS,
    SampledToken,
    detection_power,
    seeds_apart,
)
from polydec.lab.bench.shapes import (
    PLACES,
    WIDTHS,
    CandidateGap,
    finite_difference_range,
    measure_candidate_gap,
)
from polydec.lab.bench.trials import spread_over
from polydec.lab.bench.valid import is_valid_text
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.lark import LarkGrammar
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanOf


def drawn(count, seed=0, draw=lambda rng, p_V: rng.choice(len(p_V), p=p_V), length=8, alike=False):
    """Tokens of laws that are made up, drawn as `draw` says; alike: every text by the same randomness."""
    rng, out = np.random.default_rng(seed), []
    made = np.random.default_rng(7)
    laws = [made.dirichlet(np.full(12, 0.4)) for _ in range(length)]
    for text in range(count // length):
        mine = np.random.default_rng(99) if alike else rng
        for at, p_V in enumerate(laws):
            x = int(draw(mine, p_V))
            out.append(
                SampledToken(
                    0,
                    0,
                    text,
                    at,
                    x,
                    TokenPlace(at + 1, 1, False),
                    token_fate(p_V, x, rng.random()),
                    (at,),
                )
            )
    return out


def hot(by):
    return lambda rng, p_V: rng.choice(len(p_V), p=p_V**by / (p_V**by).sum())


def least(found):
    return min(t.p for t in found)


def test_tails_against_known_values():
    assert abs(two_sided(1.959964) - 0.05) < 1e-6
    assert (
        abs(chi_square_tail(24.9958, 15) - 0.05) < 1e-5
        and abs(chi_square_critical_value(0.05, 15) - 24.9958) < 1e-3
    )
    assert 22 < chi_square_noncentrality(0.05, 0.9, 15) < 25  # 23.3 in tables


def test_a_token_knows_its_fate():
    f = token_fate(np.array([0.5, 0.25, 0.25]), 2, 0.5)
    assert f.chance == 0.25 and f.rank == pytest.approx(0.875)
    assert f.entropy == pytest.approx(1.5 * np.log(2)) and f.surprise == pytest.approx(
        2 * np.log(2)
    )
    assert f.variance == pytest.approx(0.25 * np.log(2) ** 2)
    assert token_fate(np.array([1.0, 0.0]), 1, 0.5).chance == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_draws_of_the_law_raise_no_alarm(seed):
    assert least(sampled_laws.run_law_tests(drawn(800, seed))) > ALARM


@pytest.mark.parametrize(
    "draw, name",
    [
        (hot(1.4), "surprise"),
        (lambda rng, p_V: p_V.argmax(), "surprise"),
        (lambda rng, p_V: rng.choice(np.argsort(-p_V)[:2]), "cells"),
    ],
    ids=["too cold", "the likeliest", "two tokens evenly"],
)
def test_other_laws_raise_one(draw, name):
    found = {t.name: t for t in sampled_laws.run_law_tests(drawn(1600, draw=draw))}
    assert found[name].p < ALARM / 10
    assert "place 1 among the tokens of a pass" in found[name].where


def test_a_bound_on_how_often_holds_for_few_and_rare_events():
    rng = np.random.default_rng(3)
    for q, events in ((0.001, 5), (0.02, 40), (0.5, 7), (0.9, 100)):
        bounds = [as_often([(rng.random() < q, q) for _ in range(events)]) for _ in range(4000)]
        for alpha in (0.2, 0.05, 0.005):
            assert np.mean(np.array(bounds) <= alpha) <= alpha + 3 * (alpha / 4000) ** 0.5
    assert as_often([]) == 1.0
    assert as_often([(True, 0.001)]) > 0.01  # a normal tail would say 1e-218
    assert as_often([(True, 0.3)] * 24) < 1e-6 and as_often([(False, 0.7)] * 24) < 1e-6
    assert as_often([(True, 1.0)] * 50 + [(False, 0.0)] * 50) == pytest.approx(1.0)


def test_a_rare_repetition_is_no_alarm_and_many_are():
    def texts(tokens):
        flat = np.full(1000, 1e-3)
        return [
            SampledToken(0, 0, i, 0, x, TokenPlace(1, 1, False), token_fate(flat, x, 0.5), ())
            for i, x in enumerate(tokens)
        ]

    assert sampled_laws.shared_randomness_test(texts([5, 5, 7])).p > 1e-3
    assert sampled_laws.shared_randomness_test(texts([5] * 8)).p < ALARM
    assert sampled_laws.shared_randomness_test(texts(range(8))).p == pytest.approx(1.0, abs=0.2)


def test_texts_that_share_their_randomness_are_twins():
    found = {t.name: t for t in sampled_laws.run_law_tests(drawn(320, alike=True))}
    assert found["twins"].p < ALARM and found["twins"].off > 0


def test_a_rank_that_comes_twice_is_a_pair():
    some = drawn(800)
    ranks = {(d.choice, d.at): d.fate for d in some}
    twice = [
        SampledToken(
            d.prompt,
            d.seed,
            d.choice,
            d.at,
            d.token,
            d.place,
            ranks[d.choice, d.at // 2 * 2],
            d.before,
        )
        for d in some
    ]
    assert {t.name: t.p for t in sampled_laws.run_law_tests(twice)}["pairs"] < ALARM


def test_the_power_is_what_it_says():
    """A temperature as far off as the power states is caught about nine times of ten, one half as far off seldom."""
    count, of = 1600, 20
    stated = detection_power(drawn(count), 5).temperature
    assert 0.05 < stated < 0.5

    def caught(off):
        alarms = [
            sampled_laws.surprise_test(drawn(count, seed, hot(1 + off))).p for seed in range(of)
        ]
        return sum(p < ALARM / 5 for p in alarms) / of

    assert caught(stated) > 0.75 and caught(stated / 2) < 0.3


def test_two_samples_by_seeds():
    def side(tokens, n=24):
        rng = np.random.default_rng(len(tokens))
        texts = {(0, 0, i): tuple(int(rng.choice(tokens)) for _ in range(4)) for i in range(n)}
        return type("Side", (), {"texts": texts})

    assert seeds_apart(side([1, 2, 3]), side([1, 2, 3, 3])).p > 1e-4
    assert seeds_apart(side([1, 2, 3]), side([4, 5])).p < ALARM


def test_samples_are_spread_over_seeds():
    assert spread_over(32) == [8] * 4 and sum(spread_over(7)) == 7 and spread_over(2) == [1, 1]
    assert CELLS == 16 and content_digest([1]) == content_digest([1]) != content_digest([2])


def test_a_gap_within_the_noise_of_shapes_is_a_tie():
    assert CandidateGap((3e-4, -1e-4, 2e-4)).tie and finite_difference_range(
        [3e-4, -1e-4]
    ) == pytest.approx(4e-4)
    assert not CandidateGap((0.3, 0.3001, 0.2999)).tie and CandidateGap((5e-6, 5e-6)).tie
    assert not CandidateGap((float("inf"), float("inf"))).tie


def test_shapes_that_agree_by_chance_are_judged_by_the_places_before():
    coarse = CandidateGap(
        (0.125, 0.125, 0.125), before=(0.0, 0.125, 0.0, 0.125)
    )  # bfloat16's steps
    assert coarse.noise == 0.0625 and coarse.tie
    assert not CandidateGap((0.125, 0.125, 0.125)).tie
    assert not CandidateGap((0.5, 0.5), before=(0.0, 0.125, 0.0, 0.125)).tie


def test_a_gap_is_looked_at_where_it_is_and_before():
    lm = load("zoo:tiny", dtype="float32")
    target = lm.checkpoint.lm
    ids = lm.encode_prompt("Once upon a time there was", raw=True)
    for behind in ((), ids[:5]):
        found = measure_candidate_gap(target, ids, behind, 5, 6)
        assert len(found.differences) == len(WIDTHS) + 1
        assert len(found.before) == min(PLACES, len(ids) - 1 + len(behind))
        assert found.noise == 0.0, "the compiled step's rows depend on nothing but the row"
        first, second = run_coroutines([_behind(target, (*ids, *behind))])[0]
        assert set(found.differences) == {first - second}


async def _behind(target, text):
    """The log-probabilities of tokens 5 and 6 behind a text."""
    session = target.open_session(text)
    await session.prefill_prompt(ScoreRequest())
    return (await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())).token_logprobs(
        0, (5, 6)
    )


def test_places_of_tokens():
    watch = TokenPlaceObserver()
    for event in (
        OpenedEvent(0, (1,)),
        EditedEvent(0, TextEdit(), (), (), 0),
        EditedEvent(0, TextEdit(), (5, 6, 7), ("", "", ""), 2),
        EditedEvent(0, TextEdit(), (8,), ("",), 0),
    ):
        watch(event)
    assert watch.token_place(0, 1) == TokenPlace(1, 2, True) and watch.token_place(
        0, 2
    ) == TokenPlace(1, 3, False)
    assert watch.token_place(0, 3) == TokenPlace(2, 1, False) and watch.token_place(0, 4) is None
    assert str(watch.token_place(0, 1)) == "pass 1, place 2 of its tokens (an accepted draft)"


@pytest.mark.parametrize(
    "constraint, text, said",
    [
        (Regex("a+b"), "aab", True),
        (Regex("a+b"), "aabb", False),
        (AnyOf(("yes", "no")), "no", True),
        (AnyOf(("yes", "no")), "not", False),
        (SpanOf("the old mill"), "old mill", True),
        (SpanOf("the old mill"), "old mills", False),
        (JsonSchema('{"type": "integer"}'), "17", True),
        (JsonSchema('{"type": "integer"}'), '"17"', False),
        (JsonSchema('{"type": "integer"}'), "17,", False),
        (LarkGrammar('start: "a"'), "a", None),
    ],
)
def test_answers_are_judged_by_others(constraint, text, said):
    assert is_valid_text(constraint, text) is said
