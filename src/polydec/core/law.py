"""Arithmetic on laws: rows of log-weights (logw_V), of log-probabilities (logp_V) and of probabilities (p_V, float64)."""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def normalise_log_weights(logw_V: Tensor) -> Tensor:
    """Log-probabilities of log-weights, along the last axis."""
    return torch.log_softmax(logw_V, -1)


def float64_probabilities(logp_V: Tensor) -> Tensor:
    """Float64 probabilities of log-probabilities, as exact as these are: exponentials of float64 cost twice as much."""
    return logp_V.exp().double()


def one_hot(token: int, like_V: Tensor) -> Tensor:
    """Log-probabilities with all weight on one token; dtype and device of `like_V`."""
    out = torch.full_like(like_V, NEG_INF)
    out[token] = 0.0
    return out


def residual_law(p_V: Tensor, q_V: Tensor) -> Tensor:
    """What a rejected draw from q leaves of p: (p - q)+ renormalised; p itself where rounding left nothing."""
    r = (p_V - q_V).clamp_(min=0.0)
    total = float(r.sum())
    if total > 0.0:
        return r / total
    return p_V


def exclude_token(p_V: Tensor, token: int) -> Tensor:
    """p with one token taken out, renormalised; all zero where nothing else had weight."""
    out = p_V.clone()
    out[token] = 0.0
    total = float(out.sum())
    if total > 0.0:
        return out / total
    return out


def jensen_shannon_divergence(p_logp_V: Tensor, q_logp_V: Tensor) -> float:
    """Jensen-Shannon divergence of two laws in nats: 0 (the same) to log 2 (no token in common)."""
    p_V = float64_probabilities(p_logp_V)
    q_V = float64_probabilities(q_logp_V)
    m_V = (p_V + q_V) / 2
    return max(
        0.0,
        float(((torch.xlogy(p_V, p_V) + torch.xlogy(q_V, q_V)) / 2 - torch.xlogy(m_V, m_V)).sum()),
    )
