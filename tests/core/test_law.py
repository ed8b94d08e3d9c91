"""Arithmetic on laws."""

import math

import torch

from polydec.core import law
from polydec.core.law import NEG_INF

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)


def test_normalise_and_probs():
    w = torch.tensor([1.0, 3.0, NEG_INF])
    assert torch.allclose(
        law.normalise_log_weights(w).exp(), torch.tensor([0.1192, 0.8808, 0.0]), atol=1e-4
    )
    assert law.float64_probabilities(law.normalise_log_weights(w)).dtype == torch.float64


def test_one_hot():
    out = law.one_hot(1, P.float())
    assert out.tolist() == [NEG_INF, 0.0, NEG_INF] and out.dtype == torch.float32


def test_residual():
    assert torch.allclose(
        law.residual_law(P, Q), torch.tensor([0.75, 0.0, 0.25], dtype=torch.float64)
    )
    assert law.residual_law(P, P) is P  # rounding rejected what could not be
    assert P.tolist() == [0.5, 0.3, 0.2]


def test_without():
    assert torch.allclose(
        law.exclude_token(P, 0), torch.tensor([0.0, 0.6, 0.4], dtype=torch.float64)
    )
    assert law.exclude_token(torch.tensor([0.0, 1.0]), 1).tolist() == [0.0, 0.0]


def test_divergence():
    """Against its definition: the mean of two divergences from the mixture."""
    m = (P + Q) / 2
    want = float((P * (P / m).log() + Q * (Q / m).log()).sum()) / 2
    assert (
        abs(law.jensen_shannon_divergence(P.log(), Q.log()) - want) < 1e-12
        and law.jensen_shannon_divergence(P.log(), P.log()) == 0.0
    )
    apart = torch.eye(2, dtype=torch.float64).log()
    assert abs(law.jensen_shannon_divergence(apart[0], apart[1]) - math.log(2)) < 1e-12
