"""What the three exact verifiers promise of texts and of acceptance."""

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, DrawKind, ScoreRequest
from polydec.lab.testing.enumerate import enumerate_executions, total_variation
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.coupled_chain import CoupledChainTree
from polydec.methods.speculative.trees.coupled_static import CoupledStaticTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.coupled import CoupledVerifier
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.methods.speculative.verifiers.trust import TrustVerifier

REQUESTS = [Request((0, 1, 0, 1), max_tokens=24, seed=s) for s in range(6)]


def texts(drafter, verifier):
    decoder = SpeculativeDecoder(toy_law(3, 7, eos=-1), drafter, verifier, FixedPolicy(4, 12))
    return [run_coroutines([answer_one(decoder, r)])[0] for r in REQUESTS]


def ids(results):
    return [r.token_ids for r in results]


@pytest.mark.parametrize(
    "drafter",
    [
        LookupDrafter(),
        RecyclingDrafter(k=3),
        ModelDrafter(toy_law(3, 7, sharp=0.8), StaticTree((2, 1))),
    ],
    ids=lambda d: type(d).__name__,
)
def test_match_gives_the_text_of_plain_decoding(drafter):
    assert ids(texts(drafter, MatchVerifier())) == ids(texts(NothingDrafter(), MatchVerifier()))


@pytest.mark.parametrize(
    "drafter", [LookupDrafter(), RecyclingDrafter(k=3)], ids=lambda d: type(d).__name__
)
def test_exact_gives_it_too_where_candidates_are_certain(drafter):
    got = texts(drafter, ExactVerifier())
    assert ids(got) == ids(texts(NothingDrafter(), MatchVerifier())) and got == texts(
        drafter, MatchVerifier()
    )


@pytest.mark.parametrize(
    "drafter",
    [
        LookupDrafter(),
        ModelDrafter(toy_law(4, 7), CoupledChainTree()),
        ModelDrafter(toy_law(3, 7, sharp=0.8), CoupledStaticTree()),
        ModelDrafter(toy_law(4, 7), ChainTree()),
    ],
    ids=lambda d: type(getattr(d, "tree", d)).__name__,
)
def test_coupled_gives_one_text_under_any_drafter(drafter):
    assert ids(texts(drafter, CoupledVerifier())) == ids(texts(NothingDrafter(), CoupledVerifier()))


def test_a_draft_that_is_the_target_is_always_accepted():
    for tree, verifier in (
        (ChainTree(), ExactVerifier()),
        (CoupledChainTree(), CoupledVerifier()),
        (StaticTree((2, 1, 1)), ExactVerifier()),
    ):
        for r in texts(ModelDrafter(toy_law(3, 7, eos=-1), tree), verifier):
            assert all(a == t for a, t in zip(r.stats.accepted_at, r.stats.tried_at, strict=True))


def one_round(tree, verifier, target, draft):
    """The probability that a first candidate is accepted."""

    async def go(rng):
        guess = await tree.grow_tree(
            draft.open_session((0, 1)), 1, 2, FixedPolicy(1, 9).start_state(), rng
        )
        scores = await target.open_session((0, 1)).score_draft(guess, ScoreRequest())
        return len(verifier.verify_draft(guess, scores, rng, 2).path)

    return sum(p for n, p in enumerate_executions(lambda rng: run_coroutines([go(rng)])[0]) if n)


def row(target):
    return (
        run_coroutines(
            [target.open_session((0, 1)).score_draft(Draft.chain_draft(1), ScoreRequest())]
        )[0]
        .logprob_row(0)
        .exp()
    )


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_of_one_draw(seed):
    """exact accepts 1 - TV, the best there is; match the chance that two independent draws agree; coupled at least
    (1 - TV) / (1 + TV)."""
    target, draft = toy_law(seed, 3), toy_law(seed + 50, 3)
    p, q = row(target), row(draft)
    tv = total_variation(p, q)
    assert one_round(ChainTree(), ExactVerifier(), target, draft) == pytest.approx(1 - tv, abs=1e-9)
    assert one_round(ChainTree(), MatchVerifier(), target, draft) == pytest.approx(
        float((p * q).sum()), abs=1e-9
    )
    assert (
        one_round(CoupledChainTree(), CoupledVerifier(), target, draft)
        >= (1 - tv) / (1 + tv) - 1e-9
    )


def test_all_tokens_without_replacement_never_reject():
    for seed in range(4):
        target, draft = toy_law(seed, 3), toy_law(seed + 50, 3)
        assert one_round(StaticTree((3,)), ExactVerifier(), target, draft) == pytest.approx(
            1.0, abs=1e-9
        )


def test_more_candidates_are_accepted_more_often():
    target, draft = toy_law(2, 4), toy_law(52, 4)
    rates = [
        one_round(StaticTree((k,), replace), ExactVerifier(), target, draft)
        for replace in (True, False)
        for k in (1, 2, 3)
    ]
    assert rates[0] < rates[1] < rates[2] and rates[3] < rates[4] < rates[5]
    assert rates[0] == pytest.approx(rates[3]) and rates[1] < rates[4]


@pytest.mark.parametrize("draw", [DrawKind.INDEPENDENT, DrawKind.WITHOUT])
def test_rounding_leaves_a_law(draw):
    """p equal to q but for rounding, a child rejected all the same: the token then comes from p."""

    class Near:
        def __init__(self, p):
            self.logp = p.log()

        def certain_token(self, i):
            return None

        def logprob_row(self, i):
            return self.logp

    class Rejects:
        def __init__(self):
            self.final = Rng.of_choice(1)

        def child_stream(self, *names):
            return self

        def draw_bernoulli(self, a):
            return False

        def draw_categorical(self, p):
            assert bool(torch.isfinite(p).all()) and float(p.sum()) > 0
            return self.final.draw_categorical(p)

    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    draft = Draft((0, 1, 0), (-1, 0, 0), (DrawKind.CERTAIN, draw, draw), (None, p.log(), p.log()))
    assert ExactVerifier().verify_draft(draft, Near(p), Rejects(), 0).bonus in (0, 1)
    draft = Draft(
        (0, 1, 0), (-1, 0, 0), (DrawKind.CERTAIN, DrawKind.CERTAIN, draw), (None, None, p.log())
    )
    assert (
        ExactVerifier().verify_draft(draft, Near(torch.tensor([0.0, 1.0, 0.0])), Rejects(), 0).bonus
        == 1
    )


@pytest.mark.parametrize("drafted", range(5))
def test_trust_draws_the_token_behind_the_draft_as_plain_decoding_does(drafted):
    """Where the draft is what plain decoding writes, so is what comes behind it: its draw is that of its own position."""
    for request, plain in zip(REQUESTS, texts(NothingDrafter(), MatchVerifier()), strict=True):
        prompt, said = request.prompt, plain.token_ids
        draft = Draft.chain_draft(prompt[-1], said[:drafted])
        scores = run_coroutines(
            [toy_law(3, 7, eos=-1).open_session(prompt).score_draft(draft, ScoreRequest())]
        )[0]
        verdict = TrustVerifier().verify_draft(
            draft, scores, Rng.of_choice(request.seed), len(prompt)
        )
        assert verdict.written_tokens(draft) == said[: drafted + 1]
