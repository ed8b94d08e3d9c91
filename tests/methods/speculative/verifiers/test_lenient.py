"""Lenience, by its formula."""

import pytest
import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, Exactness
from polydec.lab.testing.enumerate import enumerate_executions
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.lenient import LenientVerifier
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores


def first_token(p, q, lenience):
    """The law of the first token behind a chain of one, enumerated over what is drafted and every draw of the verifier."""
    scores = LogitScores([NetworkAnswer(torch.stack([p, p]).log())])

    def once(rng):
        token = rng.child_stream("draft").draw_categorical(q)
        draft = Draft.chain_draft(0, [token], [q.log()])
        return (
            LenientVerifier(lenience).verify_draft(draft, scores, rng, 5).written_tokens(draft)[0]
        )

    out = torch.zeros_like(p)
    for token, chance in enumerate_executions(once):
        out[token] += chance
    return out


@pytest.mark.parametrize("lenience", [0.1, 0.4, 0.75, 1.0])
def test_the_law_is_the_papers_formula(lenience):
    """q min(1, p / (lenience q)), and of the rest the part of p that lies above q."""
    g = torch.Generator().manual_seed(3)
    for _ in range(20):
        p, q = (torch.rand(4, generator=g, dtype=torch.float64) for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        kept = torch.minimum(q, p / lenience)
        above = (p - q).clamp_min(0)
        want = kept + (1 - kept.sum()) * above / above.sum()
        assert float((first_token(p, q, lenience) - want).abs().max()) < 1e-9
        if lenience == 1:
            assert float((want - p).abs().max()) < 1e-9


def test_at_one_it_is_exact_draw_by_draw_and_below_it_accepts_more():
    target, small = toy_law(3, 7, eos=-1), toy_law(4, 7, eos=-1, cost=0.1)
    accepted = {}
    for verifier in (
        ExactVerifier(),
        LenientVerifier(1.0),
        LenientVerifier(0.3),
        LenientVerifier(0.01),
    ):
        decoder = SpeculativeDecoder(
            target, ModelDrafter(small, ChainTree()), verifier, FixedPolicy(4)
        )
        got = [
            run_coroutines([answer_one(decoder, Request((0, 1), 40, seed=s))])[0] for s in range(8)
        ]
        accepted[verifier] = [sum(r.stats.accepted / r.stats.drafted for r in got), got]
    assert accepted[ExactVerifier()][1] == accepted[LenientVerifier(1.0)][1]
    rates = [
        accepted[v][0] for v in (LenientVerifier(1.0), LenientVerifier(0.3), LenientVerifier(0.01))
    ]
    assert rates == sorted(set(rates))


def test_greedy_text_stays():
    target, small = (
        ShapedTarget(toy_law(3, 7, eos=-1), GreedyRule()),
        toy_law(4, 7, eos=-1, cost=0.1),
    )
    texts = {
        run_coroutines(
            [
                answer_one(
                    SpeculativeDecoder(target, ModelDrafter(small, ChainTree()), v, FixedPolicy(4)),
                    r,
                )
            ]
        )[0].token_ids
        for v in (ExactVerifier(), LenientVerifier(0.1))
        for r in [Request((0, 1), 40)]
    }
    assert len(texts) == 1


def test_the_method_says_that_it_is_approximate():
    decoder, options = build("distillspec", toy_law(1), toy_law(2, cost=0.1))
    assert decoder.exactness is Exactness.APPROXIMATE and options["lenience"] == 0.5


@pytest.mark.parametrize("lenience", [0, -1, 1.1, float("nan")])
def test_one_clear_sentence(lenience):
    with pytest.raises(ValueError, match="it must lie above 0 and at most 1"):
        LenientVerifier(lenience)
    with pytest.raises(ValueError, match="lenience is "):
        build("distillspec", toy_law(1), toy_law(2, cost=0.1), {"lenience": lenience})


def test_a_token_that_the_target_has_not_never_passes():
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ((0.0, 0.5, 0.5), (0.9, 0.05, 0.05)))
    assert float(first_token(p, q, 0.01)[0]) == 0.0
