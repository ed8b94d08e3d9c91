"""Tokens that a mixture draws from the mean of several choices of experts, held against a loop with a fresh session a token."""

from __future__ import annotations

import math

import pytest
import torch

from mixtures import EXPERTS, LAYERS, mixture
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.pool import (
    HypothesisPoolSearch,
    PoolController,
    PoolWindow,
    VoteWeights,
)
from polydec.methods.search.loop.refining import ExpertRefinement, mean_law
from polydec.methods.search.loop.rollouts import RolloutSearch
from polydec.methods.search.loop.vote import MajorityVotePicker
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier

PROMPT, LENGTH = (3, 4, 5, 6), 8
ROUTES, EQUAL = (LAYERS, EXPERTS), VoteWeights(0.0, 0.0)


class Always:
    """A controller that refines from the first look on, and changes nothing else."""

    interval, refine = 1, True

    def texts_to_drop(self, phase, windows):
        return ()

    def text_to_fork(self, phase, windows):
        return None

    def refines_tokens(self, phase, windows):
        return True


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def pool(target, refining, control=None, **fields):
    return HypothesisPoolSearch(
        plain(target), control or Always(), EQUAL, refining=refining, tries=2, **fields
    )


def law(target, text, by):
    async def row():
        session = target.open_session(text[:1])
        await session.prefill_prompt(ScoreRequest())
        session.commit_tokens(text[:-1])
        return (
            (await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest(routing=by)))
            .logprob_row(0)
            .double()
        )

    return run_coroutines([row()])[0]


def reference(target, stream, refining):
    """One text: each token but the first from the mean of the probabilities where the own law is unsure."""
    text, refined = PROMPT, 0
    while len(text) < len(PROMPT) + LENGTH and (len(text) == len(PROMPT) or text[-1] != 1):
        at = len(text)
        p_V = law(target, text, None).exp()
        unsure = float(-(p_V * p_V.log()).sum()) > refining.above
        if unsure and at > len(PROMPT):  # the first look comes behind the first pass
            laws = [p_V]
            for way in range(1, refining.ways):
                noise_V = (
                    stream.child_stream("routing", at, way).gumbel_noise(LAYERS * EXPERTS).gumbel_V
                )
                noise_LE = refining.stir * noise_V.view(LAYERS, EXPERTS)
                laws.append(law(target, text, tuple(map(tuple, noise_LE.tolist()))).exp())
            p_V, refined = sum(laws) / len(laws), refined + 1
        text = (*text, stream.child_stream("token", at).draw_categorical(p_V))
    return text[len(PROMPT) :], refined


@pytest.mark.parametrize("heat", [1.0, 0.6])
def test_it_is_the_loop(heat):
    refined = other = 0
    for seed in range(12):
        target = ShapedTarget(mixture(seed), TemperatureRule(heat))
        refining = ExpertRefinement(ROUTES, 2 + seed % 3, 1.0 + seed % 2, (0.0, 1.2)[seed % 2])
        got = run_coroutines(
            [answer_one(pool(target, refining), Request(PROMPT, LENGTH, seed=seed))]
        )[0]
        streams = [Rng.of_choice(seed), Rng.of_choice(seed).child_stream("try", 1)]
        texts, counts = zip(*(reference(target, s, refining) for s in streams), strict=True)
        assert got.token_ids in texts and got.stats.refined == sum(counts)
        ways = refining.ways - 1
        assert got.stats.scored == sum(map(len, texts)) + ways * sum(counts)
        alone = run_coroutines(
            [answer_one(pool(target, None), Request(PROMPT, LENGTH, seed=seed))]
        )[0]
        refined, other = refined + sum(counts), other + (alone.token_ids != got.token_ids)
    assert refined > 40 and other > 3


def test_without_noise_or_with_a_high_bar_it_is_self_consistency_draw_for_draw():
    for seed in range(6):
        target, request = mixture(seed), Request(PROMPT, LENGTH, seed=seed)
        want = run_coroutines(
            [answer_one(RolloutSearch(plain(target), MajorityVotePicker(), 2, 2), request)]
        )[0]
        still = run_coroutines(
            [answer_one(pool(target, ExpertRefinement(ROUTES, 3, 0.0, 0.0)), request)]
        )[0]
        sure = run_coroutines(
            [answer_one(pool(target, ExpertRefinement(ROUTES, 3, 1.0, 99.0)), request)]
        )[0]
        assert still.token_ids == sure.token_ids == want.token_ids and sure.stats == want.stats
        assert still.stats.refined and still.stats.written == want.stats.written


def watched(seed):
    """A mixture, and how many rows each of its passes has."""
    target, ran = mixture(seed), []
    forward = target.network.forward
    target.network.forward = lambda queries: ran.append(sum(map(len, queries))) or forward(queries)
    return target, ran


def test_passes_are_counted_as_they_ran():
    for seed in range(4):
        target, ran = watched(seed)
        found = run_coroutines(
            [
                answer_one(
                    pool(target, ExpertRefinement(ROUTES, 3, 1.0, 0.5)),
                    Request(PROMPT, 6, seed=seed),
                )
            ]
        )[0]
        prompt = len(PROMPT) - 1
        assert found.stats.scored == sum(ran) - prompt and found.stats.passes == len(ran) - 1
        assert found.stats.metrics()["tokens_refined"] == found.stats.refined > 0


def test_the_mean_is_of_probabilities_and_log_probabilities_stay_the_models():
    assert mean_law([torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])]).tolist() == [0.75, 0.25]
    target = mixture(1)
    request = Request(PROMPT, LENGTH, seed=1, logprobs=0)
    got = run_coroutines(
        [answer_one(pool(target, ExpertRefinement(ROUTES, 4, 2.0, 0.0)), request)]
    )[0]
    for i, said in enumerate(got.logprobs):
        row = law(target, (*PROMPT, *got.token_ids[:i]), None)
        assert abs(said.logp - float(row[got.token_ids[i]])) < 1e-6


def test_routings_are_drawn_by_position_and_way_and_scaled():
    refining, stream = ExpertRefinement(ROUTES, 4, 0.5, 1.0), Rng.of_choice(3)
    at_5, at_6 = refining.draw_routings(stream, 5), refining.draw_routings(stream, 6)
    assert len(at_5) == 3 and len(set(at_5 + at_6)) == 6
    double = ExpertRefinement(ROUTES, 4, 1.0, 1.0).draw_routings(stream, 5)
    assert torch.allclose(2 * torch.tensor(at_5), torch.tensor(double))
    many = torch.tensor(
        [ExpertRefinement((40, 50), 2, 1.0).draw_routings(Rng.of_choice(i), 0) for i in range(9)]
    )
    assert abs(float(many.mean()) - 0.5772) < 0.03  # Gumbel's
    assert abs(float(many.std()) - math.pi / 6**0.5) < 0.03


def test_a_pool_refines_late_while_it_is_unsure_and_only_a_mixture_does():
    windows = [PoolWindow((i, i + 1, i + 2, i + 3), -1.0, 0.8, -1.0) for i in range(0, 30, 10)]
    control = PoolController(refine=True)  # they differ: growing is worth nothing
    assert [control.refines_tokens(p, windows) for p in (0.0, 0.1, 0.2, 0.9)] == [
        False,
        False,
        True,
        True,
    ]
    assert not control.texts_to_drop(0.9, windows) and control.text_to_fork(0.9, windows) is None
    assert not PoolController().refines_tokens(0.9, windows)
    sure = [PoolWindow(w.tokens, -1.0, 0.3, -1.0) for w in windows]
    assert not control.refines_tokens(0.9, sure)  # 0.27 against 0.63
    assert ExpertRefinement.of_target(toy_law(0, 5), 4, 0.2, 1.0) is None
    assert ExpertRefinement.of_target(mixture(), 1, 0.2, 1.0) is None
    assert ExpertRefinement.of_target(
        ShapedTarget(mixture(), TemperatureRule(0.5)), 4, 0.2, 1.0
    ) == ExpertRefinement(ROUTES)
    for field, value in (("ways", 1), ("stir", -0.1), ("above", math.nan)):
        with pytest.raises(ValueError, match=f"{field} is {value}: it must be at least"):
            ExpertRefinement(ROUTES, **{field: value})
