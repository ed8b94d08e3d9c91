"""Divergences: zero, bounds, gradients, and what acceptance is."""

import math

import pytest
import torch

from polydec.lab.train.divergence import DIVERGENCES, acceptance_probability, divergence_by_name


def laws(
    seed: int, rest: float = 0.0, n: int = 3, c: int = 6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    p = torch.randn(n, c, generator=g, dtype=torch.float64).softmax(-1) * (1 - rest)
    q = torch.randn(n, c, generator=g, dtype=torch.float64).softmax(-1)
    return p.log(), q.log(), torch.full((n,), rest, dtype=torch.float64)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_zero_iff_equal(name):
    logp, logq, rest = laws(0)
    assert divergence_by_name(name)(logp, logp, rest).abs().max() < 1e-12
    assert divergence_by_name(name)(logp, logq, rest).min() > 1e-3


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("rest", [0.0, 0.3])
def test_gradient(name, rest):
    logp, logq, rest_N = laws(1, rest)
    z = logq.clone().requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda z: divergence_by_name(name, 0.3)(logp, z.log_softmax(-1), rest_N), (z,)
    )


def test_values_by_hand():
    p, q = torch.tensor([[0.75, 0.25]]).double(), torch.tensor([[0.5, 0.5]]).double()
    rest = torch.zeros(1).double()
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert divergence_by_name("fkl")(p.log(), q.log(), rest).item() == pytest.approx(kl)
    assert divergence_by_name("rkl")(q.log(), p.log(), rest).item() == pytest.approx(kl)
    assert divergence_by_name("tvd")(p.log(), q.log(), rest).item() == pytest.approx(0.25)
    assert acceptance_probability(p.log(), q.log(), rest).item() == pytest.approx(0.75)


def test_jsd_is_symmetric_and_bounded():
    logp, logq, rest = laws(2)
    assert torch.allclose(
        divergence_by_name("jsd")(logp, logq, rest), divergence_by_name("jsd")(logq, logp, rest)
    )
    far = torch.tensor([[0.0, -800.0]]).double()
    assert divergence_by_name("jsd")(
        far, far.flip(-1), torch.zeros(1).double()
    ).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", ["jsd", "tvd"])
def test_rest_counts_as_tokens_that_the_draft_never_proposes(name):
    logp, logq, rest = laws(3, 0.2)
    whole_p = torch.cat([logp, rest[:, None].log()], -1)
    whole_q = torch.cat([logq, torch.full((3, 1), -math.inf).double()], -1)
    none = torch.zeros(3).double()
    assert torch.allclose(
        divergence_by_name(name, 0.4)(logp, logq, rest),
        divergence_by_name(name, 0.4)(whole_p, whole_q, none),
    )


def test_forward_kl_is_zero_at_the_renormalised_law():
    logp, _, rest = laws(4, 0.2)
    best = logp.log_softmax(-1)
    assert divergence_by_name("fkl")(logp, best, rest).abs().max() < 1e-12
    assert divergence_by_name("fkl")(logp, laws(5)[1], rest).min() > 1e-3


def test_acceptance_equals_exact_verification():
    logp, logq, rest = laws(6, 0.1, n=1, c=4)
    g = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(logq[0].exp(), 40000, replacement=True, generator=g)
    ok = torch.rand(40000, generator=g, dtype=torch.float64) < (logp[0] - logq[0]).exp()[drawn]
    assert ok.double().mean().item() == pytest.approx(
        acceptance_probability(logp, logq, rest).item(), abs=0.01
    )


@pytest.mark.parametrize(
    ("name", "beta", "word"), [("kl", 0.5, "divergence"), ("jsd", 1.0, "beta")]
)
def test_bad_input(name, beta, word):
    with pytest.raises(ValueError, match=word):
        divergence_by_name(name, beta)
