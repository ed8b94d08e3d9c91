"""Contrastive search: against the formula with fresh sessions, and where it is greedy decoding."""

import math

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.contrast import ContrastTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.switch import RandomSwitchRule, SwitchTarget
from polydec.methods.search.loop.contrastive_search import ContrastiveSearch


def states(target, text):
    async def score():
        session = target.open_session(text[:1])
        scores = await session.score_draft(
            Draft.chain_draft(text[0], text[1:]), ScoreRequest(hidden=True)
        )
        return scores, scores.hidden_NH

    return run_coroutines([score()])[0]


def reference(target, prompt, length, k, alpha):
    text = list(prompt)
    for _ in range(length):
        scores, before = states(target, text)
        tokens, logp = scores.likeliest_tokens(len(text) - 1, k)
        worth = []
        for token, p in zip(tokens, logp):
            h = states(target, [*text, token])[1][-1]
            near = max(float(torch.cosine_similarity(h, b, dim=0)) for b in before)
            worth.append((1 - alpha) * math.exp(p) - alpha * near)
        text.append(tokens[worth.index(max(worth))])
    return tuple(text[len(prompt) :])


def decoded(target, method="contrastive-search", prompt=(0, 1, 2), length=12, **options):
    request = Request(prompt, length, ignore_eos=True)
    return run_coroutines([answer_one(build(method, target, None, options)[0], request)])[0]


@pytest.mark.parametrize("prompt", [(0, 1, 2), (3,)])
def test_it_takes_what_the_formula_says(prompt):
    for seed, k, alpha in (
        (1, 3, 0.6),
        (2, 5, 0.3),
        (3, 2, 0.9),
        (4, 6, 0.1),
    ):  # at 1 states that were seen before tie
        target = toy_law(seed, 6)
        got = decoded(target, prompt=prompt, candidates=k, penalty=alpha)
        assert got.token_ids == reference(target, prompt, 12, k, alpha)
        assert got.stats.passes == 13 and got.stats.scored == 1 + 12 * k


def test_where_it_is_greedy():
    for seed in range(4):
        target = toy_law(seed, 6, sharp=2.0)
        greedy = decoded(ShapedTarget(target, GreedyRule()), "plain").token_ids
        assert (
            decoded(target, candidates=1).token_ids
            == greedy
            == decoded(target, penalty=0.0).token_ids
        )
        assert decoded(ShapedTarget(target, GreedyRule())).token_ids == decoded(target).token_ids, (
            "temperature 0 is the law before it"
        )


def test_it_searches_a_steered_law():
    law = ContrastTarget(toy_law(1, 6), (toy_law(2, 6),), DifferenceContrast(2.0, 1.0))
    assert (
        decoded(law).token_ids
        == reference(law, (0, 1, 2), 12, 5, 0.6)
        != decoded(toy_law(1, 6)).token_ids
    )


def test_what_is_refused():
    stateless = SwitchTarget(toy_law(1), toy_law(2), RandomSwitchRule(0.5))
    with pytest.raises(ValueError, match="contrastive-search needs a model that shows its states"):
        decoded(stateless)
    with pytest.raises(ValueError, match="this target gives none"):
        run_coroutines([answer_one(ContrastiveSearch(stateless), Request((0, 1), 3))])
    for how in ({"width": 0}, {"penalty": 1.5}):
        with pytest.raises(ValueError, match=r"it must lie in"):
            ContrastiveSearch(toy_law(1), **how)
