"""Stochastic beam search draws whole texts without replacement."""

from collections import defaultdict

import pytest

from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.transcript import Transcript
from polydec.lab.testing.enumerate import enumerate_executions, target_law
from polydec.lab.testing.examples import SHAPERS, bend_target
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.stochastic_beam import StochasticBeamSearch

PROMPT = (0, 1, 0)


def joint(target, width, length, n):
    """The law of all answers together."""

    def once(rng):
        request = Request(PROMPT, length, n=n)
        found = run_coroutines(
            [
                StochasticBeamSearch(target, width).write_choices(
                    request, lambda choice: rng, Transcript(request, target.vocab.eos)
                )
            ]
        )[0]
        return tuple(r.token_ids for r in found)

    law = defaultdict(float)
    for texts, p in enumerate_executions(once):
        law[texts] += p
    return law


def without_replacement(law, n):
    out = {(): 1.0}
    for _ in range(n):
        out = {
            (*had, text): q * p / (1.0 - sum(law[t] for t in had))
            for had, q in out.items()
            for text, p in law.items()
            if text not in had
        }
    return out


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_law_is_that_of_draws_without_replacement(width):
    for seed in range(8 if width < 3 else 2):
        name = ("plain", "shaped")[seed % 2]
        target = toy_law(seed, 3)
        law = target_law(target, PROMPT, 2, SHAPERS[name])
        if len(law) < width:
            continue
        got, want = (
            joint(bend_target(target, SHAPERS[name]), width, 2, width),
            without_replacement(law, width),
        )
        off = sum(abs(got.get(k, 0.0) - want.get(k, 0.0)) for k in {*got, *want}) / 2
        assert off < 1e-9, f"law {seed}, {name}: off by {off:.2e}"


def test_texts_of_three_tokens():
    target = toy_law(5, 3)
    got, want = joint(target, 2, 3, 2), without_replacement(target_law(target, PROMPT, 3), 2)
    assert sum(abs(got.get(k, 0.0) - want.get(k, 0.0)) for k in {*got, *want}) / 2 < 1e-9


def test_as_wide_as_there_are_texts_it_gives_all():
    target = toy_law(2, 3)
    texts = set(target_law(target, PROMPT, 2))
    found = run_coroutines(
        [run_decoder(StochasticBeamSearch(target, len(texts)), Request(PROMPT, 2, n=len(texts)))]
    )[0]
    assert {r.token_ids for r in found} == texts


def test_seeds_draw_and_prefixes_are_fed_once():
    target = toy_law(7, 6, sharp=0.5, eos=-1)
    texts = {
        run_coroutines([run_decoder(StochasticBeamSearch(target, 4), Request(PROMPT, 6, seed=s))])[
            0
        ][0].token_ids
        for s in range(8)
    }
    assert len(texts) == 8
    one = toy_law(7, 6, sharp=0.5, eos=-1)
    stats = run_coroutines([run_decoder(StochasticBeamSearch(one, 4), Request(PROMPT, 6, n=4))])[0][
        0
    ].stats
    assert one.network.runs / one.network.layers == len(PROMPT) - 1 + stats.scored <= 2 + 1 + 5 * 4
    assert stats.passes == 6 and stats.ended == 4
