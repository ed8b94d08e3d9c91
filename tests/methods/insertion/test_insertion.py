"""Insertion: the law of the process on models that are known exactly, its limits, and mutants that are found."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from polydec.core.decoder import answer_one
from polydec.core.insertion_law import InsertionScores
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Exactness
from polydec.lab.testing.check_inserting import (
    AnyTokenNetwork,
    check_given,
    check_law,
    last_slot_inserter,
    law_with_ends,
    posterior_inserter,
    random_step_law,
    some_law,
)
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.toy_insertion import PosteriorNetwork, ToyInserter
from polydec.laws.shapers.greedy import GreedyRule
from polydec.methods.insertion.loop.inserting import InsertionDecoder
from polydec.methods.insertion.loop.stats import InsertStats
from polydec.methods.insertion.loop.types import InsertionSheet

REQUEST = Request((0,), max_tokens=5)


def law(model, request=REQUEST, **options):
    return law_of(
        lambda rng: answer_one(InsertionDecoder(model, draw=True, **options), request, rng)
    )


def answer(model, request, **options):
    return run_coroutines([answer_one(InsertionDecoder(model, **options), request)])[0]


@pytest.mark.parametrize("seed", range(2))
def test_trained_without_weights_long_texts_come_too_seldom(seed):
    """p / (L + 1), as the published objective has it; with the weight L + 1 of an example p itself (`check_law`)."""
    short = {text: w / (len(text) + 1) for text, w in some_law(seed).items()}
    total = sum(short.values())
    assert (
        text_law_distance(
            law(posterior_inserter(seed, even=False)),
            law_with_ends({t: w / total for t, w in short.items()}),
        )
        < 1e-12
    )
    with pytest.raises(AssertionError, match="output law is off"):
        check_law(lambda model: InsertionDecoder(posterior_inserter(0, even=False), draw=True))


def test_mutants_are_found():
    """Two tokens of a pass that do not see each other; a likeliest slot where one is to be drawn; slots that are mixed up; a
    sheet that lets a text grow anywhere."""

    class Mirrored(PosteriorNetwork):
        def _offer(self, kept, slots):
            offer = super()._offer(kept, slots)
            return InsertionScores(offer.logw_SV.flip(0), offer.whole)

    class Anywhere(InsertionDecoder):
        def start_state(self, request):
            kept = super().start_state(request)
            return InsertionSheet(kept.token, (0,) * len(kept.behind), (sum(kept.room),))

    for mutant in (
        lambda m: InsertionDecoder(m, draw=True, count=2, share=0.0),
        lambda m: InsertionDecoder(m),
        lambda m: InsertionDecoder(ToyInserter(Mirrored(some_law(0), 2)), draw=True),
    ):
        with pytest.raises(AssertionError, match="output law is off"):
            check_law(mutant, laws=1)
    with pytest.raises(AssertionError, match="does not keep"):
        check_given(lambda m: Anywhere(m, draw=True))


@pytest.mark.parametrize("seed", range(2))
def test_with_the_last_slot_only_it_is_plain_decoding(seed):
    model = last_slot_inserter(seed, 2)
    assert (
        text_law_distance(law(model, Request((1,), max_tokens=4)), model.network.text_law(1, 4))
        < 1e-12
    )
    want, at = [], 1
    for _ in range(9):
        at = int(model.network.step_VV[at, :-1].argmax())
        want.append(at)
    assert (
        list(
            answer(
                model, Request((1,), max_tokens=9, ignore_eos=True), shapers=(GreedyRule(),)
            ).token_ids
        )
        == want
    )


def test_what_is_promised():
    assert InsertionDecoder(posterior_inserter(0), draw=True).exactness is Exactness.LAW
    for options in ({}, {"draw": True, "count": 2}):
        assert InsertionDecoder(posterior_inserter(0), **options).exactness is Exactness.APPROXIMATE


def test_a_sheet_grows_where_its_gaps_are():
    sheet = InsertionSheet.of_answer((None, None, 7, None))
    assert (sheet.token, sheet.slots, sheet.room) == ((7,), (0, 1), (2, 1))
    sheet = sheet.with_token(0, 5).with_token(1, 6)
    assert (sheet.token, sheet.slots, sheet.room) == ((5, 6, 7), (3,), (0, 1))
    assert sheet.with_token(3, 8) == InsertionSheet((5, 6, 7, 8), (0, 0, 0, 1, 1), (0, 0))
    assert not InsertionSheet.of_answer((1, 2)).slots and InsertionSheet.of_answer(
        (None,) * 3
    ).room == (3,)


def test_several_tokens_a_pass_go_into_as_many_slots():
    """Passes fall, and no gap takes more than its room, though one pass offers it more. Slots that are alike share what is
    missing, so from three of them on none is likely enough for a share of 0.4."""
    model, request = (
        ToyInserter(AnyTokenNetwork(random_step_law(3, 4, 1.0))),
        Request((1,), 12, ignore_eos=True),
    )
    passes = [
        answer(model, request, draw=True, count=k, share=0.0).stats.passes for k in (1, 2, 4, 20)
    ]
    assert (
        passes[0] == 12
        and passes[1] == 7
        and all(a >= b for a, b in pairwise(passes))
        and passes[-1] == 4
    )
    assert answer(model, request, draw=True, count=4, share=0.4).stats.passes == 11
    assert (
        len(
            answer(
                model, Request((1,), 3, given=(None, 2, None), ignore_eos=True), draw=True, count=20
            ).token_ids
        )
        == 3
    )


def test_options_are_checked_and_statistics_add_up():
    for options in ({"count": 0}, {"least": 1.5}, {"share": -0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
            InsertionDecoder(last_slot_inserter(0), **options)
    a, b = InsertStats(2, 0, 3, 10), InsertStats(1, 1, 1, 4)
    assert a.plus_stats(b) == InsertStats(3, 1, 4, 14) and a.metrics() == {
        "inserted_per_pass": 1.5,
        "positions_per_pass": 5.0,
    }
    assert InsertStats().metrics()["inserted_per_pass"] is None
    sizes = [
        len(
            answer(
                last_slot_inserter(1, 4, 0.5), Request((1,), 20), shapers=(GreedyRule(),), least=x
            ).token_ids
        )
        for x in (0.0, 0.3, 1.0)
    ]
    assert sizes[0] == 1 and all(x <= y for x, y in pairwise(sizes)) and sizes[-1] == 20


@pytest.mark.parametrize("draw", [False, True])
def test_a_model_that_knows_one_text_writes_it_however_many_tokens_a_pass_puts_in(draw):
    """Each of them lands behind the token that its slot was behind, whatever the others moved."""
    text = (3, 0, 5, 1, 4, 2)
    model, request = ToyInserter(PosteriorNetwork({text: 1.0}, 6)), Request((6,), 9, logprobs=0)
    passes = Counter()
    for count in (1, 2, 3, 6):
        for seed in range(4):
            out = run_coroutines(
                [
                    answer_one(
                        InsertionDecoder(model, count=count, draw=draw, share=0.0),
                        replace(request, seed=seed),
                    )
                ]
            )[0]
            assert out.token_ids == (*text, 6)
            assert tuple(note.token for note in out.logprobs) == out.token_ids
            passes[count] += out.stats.passes
    assert passes[1] == 4 * 7 >= passes[2] >= passes[3] >= passes[6] and passes[6] < passes[1]
