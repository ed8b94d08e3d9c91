"""A*-decoding against a search that is written from its card: fresh sessions, no forks, no cache."""

import math
from dataclasses import dataclass

import pytest

from polydec.core.decoder import answer_one, run_decoder
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.a_star import AStarSearch
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from rewards import ByToken

PROMPT = (0, 1, 0)


def search(target, **options):
    return AStarSearch(
        SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0)),
        options.pop("reward", ByToken()),
        delimiter="|",
        **options,
    )


def row(target, text):
    async def scores():
        return await target.open_session(text).score_draft(
            Draft.chain_draft(text[-1]), ScoreRequest(hidden=True)
        )

    return run_coroutines([scores()])[0]


def reference(target, reward, length, width, longest, budget, toll, rng, again=None, sure=None):
    """Texts as tuples; an open one is (f, h, -depth, number, text, drawn, stream, g, seen)."""

    def extend(text, stream, most):
        while len(text) < length and most and (not text or text[-1] not in target.vocab.eos):
            p_V = row(target, (*PROMPT, *text)).logprob_row(0).exp().double()
            steps[text] = p_V
            text, most = (
                (
                    *text,
                    stream.child_stream("token", len(PROMPT) + len(text)).draw_categorical(p_V),
                ),
                most - 1,
            )
        return text

    def chance(text, longer):
        return math.prod(float(steps[longer[:i]][longer[i]]) for i in range(len(text), len(longer)))

    def over(text):
        return len(text) == length or (text and text[-1] in target.vocab.eos)

    steps = {}
    open_, found, written = [(0.0, 0.0, 0, 0, (), 0, rng, 0.0, ())], 0, 0
    while not over(min(open_)[4]) and written < budget:
        best = min(open_)
        open_.remove(best)
        f, h, depth, number, text, drawn, stream, g, before = best
        seen = list(before)
        for i in range(drawn, drawn + width):
            mine = stream if i == 0 else stream.child_stream("step", len(text), i)
            longer = extend(text, mine, longest)
            written += len(longer) - len(text)
            if longer in seen:
                continue
            seen.append(longer)
            known = sure is not None and chance(text, longer) >= sure
            value = (
                1.0 - h
                if known
                else reward.success_chance(row(target, (*PROMPT, *longer)).hidden_NH[0])
            )
            cut = len(longer) == length and longer[-1] not in target.vocab.eos
            hope, found = 1.0 - (0.0 if cut else value), found + 1
            cost = g + max(0.0, hope - h) + toll
            open_.append((cost + hope, hope, depth - 1, found, longer, 0, mine, cost, ()))
        if again is not None:
            open_.append((f + again, h, depth, number, text, drawn + width, stream, g, tuple(seen)))
    best = min([n for n in open_ if over(n[4])] or open_)
    text, drawn, stream = best[4:7]
    return extend(text, stream.child_stream("step", len(text), drawn) if drawn else stream, length)


@pytest.mark.parametrize(
    "again, sure", [(None, None), (0.05, None), (0.4, None), (None, 0.3), (0.4, 0.5)]
)
@pytest.mark.parametrize("budget", [400, 12])
def test_it_is_the_search_of_its_card(budget, again, sure):
    texts = set()
    for seed in range(20):
        target, reward = toy_law(seed, 4, sharp=0.7), ByToken(seed)
        options = {"width": 1 + seed % 3, "longest": 1 + seed % 2, "toll": (0.01, 0.3)[seed % 2]}
        decoder = search(
            target, reward=reward, budget=budget, again=again, sure=sure, frontier=1000, **options
        )
        got = run_coroutines([run_decoder(decoder, Request(PROMPT, 7, seed=seed))])[0][0]
        want = reference(
            target,
            reward,
            7,
            **options,
            budget=budget,
            rng=Rng.of_choice(seed),
            again=again,
            sure=sure,
        )
        assert got.token_ids == want, f"seed {seed}: {got.token_ids}, by the card {want}"
        texts.add(want)
    assert len(texts) > (8 if again is None else 2)


def test_one_step_at_a_time_has_the_law_of_the_target():
    for seed in range(4):
        target = toy_law(seed, 3)
        law = law_of(
            lambda rng, t=target: answer_one(search(t, width=1, longest=1), Request(PROMPT, 3), rng)
        )
        assert text_law_distance(law, target_law(target, PROMPT, 3)) < 1e-9


def test_sure_steps_are_not_asked_of():
    asked = []
    for sure in (None, 1.0, 0.5, 1e-9):
        searches = [
            search(toy_law(seed, 4, sharp=1.5), sure=sure, longest=1, again=0.4)
            for seed in range(10)
        ]
        done = [
            run_coroutines([run_decoder(one, Request(PROMPT, 6, seed=seed))])[0][0]
            for seed, one in enumerate(searches)
        ]
        asked.append(sum(d.stats.judged for d in done))
    assert asked[0] == asked[1] > asked[2] > asked[3] == 0


@dataclass(frozen=True)
class Knows:
    """An oracle: only token 1 is right."""

    def success_chance(self, hidden_H):
        return float(hidden_H[0] == 1)


def test_an_oracle_leads_straight_to_the_goal():
    target = toy_law(3, 4, sharp=0.1, eos=-1)
    result = run_coroutines(
        [
            run_decoder(
                search(target, reward=Knows(), width=16, longest=1, toll=0.0), Request(PROMPT, 6)
            )
        ]
    )[0][0]
    assert result.token_ids[:5] == (1,) * 5 and result.stats.written <= 16 * 6


def test_what_it_refuses():
    for options, said in (
        ({"width": 0}, "width is 0: it must lie in 1 to 64"),
        ({"budget": 0}, "budget is 0: it must be at least 1"),
        ({"toll": math.nan}, "toll is nan: it must be at least 0"),
        ({"again": 0.0}, "again is 0.0: it must be above 0"),
        ({"sure": 0.0}, "sure is 0.0: it must be above 0 and at most 1"),
    ):
        with pytest.raises(ValueError, match=said):
            search(toy_law(1), **options)
