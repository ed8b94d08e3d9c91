"""What theory expects of a draft, against runs over laws that do not look at the text."""

import pytest
import torch
from studies.overlap import pearl_speedup, speedup, tokens_per_round

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.enumerate import total_variation
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law

P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.3, 0.4, 0.3])


def constant(p_V, cost):
    model = toy_law(1, 3, eos=-1, cost=cost)
    model.network.weight[:] = p_V.log()
    return model


@pytest.mark.parametrize("gamma", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_tokens_a_round(gamma):
    alpha = 1.0 - total_variation(P, Q)
    decoder = build("draft-model", constant(P, 1.0), constant(Q, 0.1), {"depth": gamma})[0]
    results = run_coroutines(
        [answer_one(decoder, Request((0, 1), 400, seed=seed)) for seed in range(6)]
    )
    got = sum(len(r.token_ids) for r in results) / sum(r.stats.passes for r in results)
    assert alpha == pytest.approx(0.8) and got == pytest.approx(
        tokens_per_round(alpha, gamma), rel=0.05
    )


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_draft_that_is_the_target(gamma):
    decoder = build(
        "draft-model", toy_law(4, 5, eos=-1), toy_law(4, 5, eos=-1, cost=0.1), {"depth": gamma}
    )[0]
    got = run_coroutines([answer_one(decoder, Request((0, 1), 8 * (gamma + 1)))])[0]
    assert got.stats.passes == 8 and tokens_per_round(1.0, gamma) == gamma + 1


def test_when_it_pays():
    """With verification at the price of one token, speculation of one token pays if and only if alpha exceeds the cost."""
    assert speedup(0.5, 1, 0.4) > 1.0 > speedup(0.5, 1, 0.6)
    assert tokens_per_round(0.0, 5) == 1.0
    assert pearl_speedup(1.0, 4, 0.25) == 4.0 and pearl_speedup(0.0, 4, 0.25) == 1.0
    assert pearl_speedup(0.9, 4, 0.25) > speedup(0.9, 4, 0.25), (
        "an overlapped round costs the longer part only"
    )
