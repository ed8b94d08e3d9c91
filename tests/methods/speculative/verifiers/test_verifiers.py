"""What the three exact verifiers promise of texts and of acceptance."""

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run
from polydec.core.types import Draft, Draw, Want
from polydec.lab.testing.enumerate import executions, total_variation
from polydec.lab.testing.toy import toy
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.model import FromModel
from polydec.methods.speculative.drafters.nothing import Nothing
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.loop.speculative import Speculative
from polydec.methods.speculative.policies.fixed import Fixed
from polydec.methods.speculative.trees.chain import Chain
from polydec.methods.speculative.trees.coupled_chain import CoupledChain
from polydec.methods.speculative.trees.coupled_static import CoupledStatic
from polydec.methods.speculative.trees.static import Static
from polydec.methods.speculative.verifiers.coupled import Coupled
from polydec.methods.speculative.verifiers.exact import Exact
from polydec.methods.speculative.verifiers.match import Match
from polydec.methods.speculative.verifiers.trust import Trust

REQUESTS = [Request((0, 1, 0, 1), max_tokens=24, seed=s) for s in range(6)]


def texts(drafter, verifier):
    decoder = Speculative(toy(3, 7, eos=-1), drafter, verifier, Fixed(4, 12))
    return [run([answer_one(decoder, r)])[0] for r in REQUESTS]


def ids(results):
    return [r.token_ids for r in results]


@pytest.mark.parametrize(
    "drafter",
    [Lookup(), Recycling(k=3), FromModel(toy(3, 7, sharp=0.8), Static((2, 1)))],
    ids=lambda d: type(d).__name__,
)
def test_match_gives_the_text_of_plain_decoding(drafter):
    assert ids(texts(drafter, Match())) == ids(texts(Nothing(), Match()))


@pytest.mark.parametrize("drafter", [Lookup(), Recycling(k=3)], ids=lambda d: type(d).__name__)
def test_exact_gives_it_too_where_candidates_are_certain(drafter):
    got = texts(drafter, Exact())
    assert ids(got) == ids(texts(Nothing(), Match())) and got == texts(drafter, Match())


@pytest.mark.parametrize(
    "drafter",
    [
        Lookup(),
        FromModel(toy(4, 7), CoupledChain()),
        FromModel(toy(3, 7, sharp=0.8), CoupledStatic()),
        FromModel(toy(4, 7), Chain()),
    ],
    ids=lambda d: type(getattr(d, "tree", d)).__name__,
)
def test_coupled_gives_one_text_under_any_drafter(drafter):
    assert ids(texts(drafter, Coupled())) == ids(texts(Nothing(), Coupled()))


def test_a_draft_that_is_the_target_is_always_accepted():
    for tree, verifier in (
        (Chain(), Exact()),
        (CoupledChain(), Coupled()),
        (Static((2, 1, 1)), Exact()),
    ):
        for r in texts(FromModel(toy(3, 7, eos=-1), tree), verifier):
            assert all(a == t for a, t in zip(r.stats.accepted_at, r.stats.tried_at, strict=True))


def one_round(tree, verifier, target, draft):
    """The probability that a first candidate is accepted."""

    async def go(rng):
        guess = await tree.grow(draft.open((0, 1)), 1, 2, Fixed(1, 9).start(), rng)
        scores = await target.open((0, 1)).score(guess, Want())
        return len(verifier.verify(guess, scores, rng, 2).path)

    return sum(p for n, p in executions(lambda rng: run([go(rng)])[0]) if n)


def row(target):
    return run([target.open((0, 1)).score(Draft.chain(1), Want())])[0].row(0).exp()


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_of_one_draw(seed):
    """exact accepts 1 - TV, the best there is; match the chance that two independent draws agree; coupled at least
    (1 - TV) / (1 + TV)."""
    target, draft = toy(seed, 3), toy(seed + 50, 3)
    p, q = row(target), row(draft)
    tv = total_variation(p, q)
    assert one_round(Chain(), Exact(), target, draft) == pytest.approx(1 - tv, abs=1e-9)
    assert one_round(Chain(), Match(), target, draft) == pytest.approx(
        float((p * q).sum()), abs=1e-9
    )
    assert one_round(CoupledChain(), Coupled(), target, draft) >= (1 - tv) / (1 + tv) - 1e-9


def test_all_tokens_without_replacement_never_reject():
    for seed in range(4):
        target, draft = toy(seed, 3), toy(seed + 50, 3)
        assert one_round(Static((3,)), Exact(), target, draft) == pytest.approx(1.0, abs=1e-9)


def test_more_candidates_are_accepted_more_often():
    target, draft = toy(2, 4), toy(52, 4)
    rates = [
        one_round(Static((k,), replace), Exact(), target, draft)
        for replace in (True, False)
        for k in (1, 2, 3)
    ]
    assert rates[0] < rates[1] < rates[2] and rates[3] < rates[4] < rates[5]
    assert rates[0] == pytest.approx(rates[3]) and rates[1] < rates[4]


@pytest.mark.parametrize("draw", [Draw.INDEPENDENT, Draw.WITHOUT])
def test_rounding_leaves_a_law(draw):
    """p equal to q but for rounding, a child rejected all the same: the token then comes from p."""

    class Near:
        def __init__(self, p):
            self.logp = p.log()

        def certain(self, i):
            return None

        def row(self, i):
            return self.logp

    class Rejects:
        def __init__(self):
            self.final = Rng.of(1)

        def at(self, *names):
            return self

        def bernoulli(self, a):
            return False

        def categorical(self, p):
            assert bool(torch.isfinite(p).all()) and float(p.sum()) > 0
            return self.final.categorical(p)

    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    draft = Draft((0, 1, 0), (-1, 0, 0), (Draw.CERTAIN, draw, draw), (None, p.log(), p.log()))
    assert Exact().verify(draft, Near(p), Rejects(), 0).bonus in (0, 1)
    draft = Draft((0, 1, 0), (-1, 0, 0), (Draw.CERTAIN, Draw.CERTAIN, draw), (None, None, p.log()))
    assert Exact().verify(draft, Near(torch.tensor([0.0, 1.0, 0.0])), Rejects(), 0).bonus == 1


@pytest.mark.parametrize("drafted", range(5))
def test_trust_draws_the_token_behind_the_draft_as_plain_decoding_does(drafted):
    """Where the draft is what plain decoding writes, so is what comes behind it: its draw is that of its own position."""
    for request, plain in zip(REQUESTS, texts(Nothing(), Match()), strict=True):
        prompt, said = request.prompt, plain.token_ids
        draft = Draft.chain(prompt[-1], said[:drafted])
        scores = run([toy(3, 7, eos=-1).open(prompt).score(draft, Want())])[0]
        verdict = Trust().verify(draft, scores, Rng.of(request.seed), len(prompt))
        assert verdict.tokens(draft) == said[: drafted + 1]
