"""Arithmetic on laws: rows of log-weights (logw_V), of log-probabilities (logp_V) and of probabilities (p_V, float64)."""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def normalise_log_weights(logw_V: Tensor) -> Tensor:
    """Log-probabilities of log-weights, along the last axis."""
    return torch.log_softmax(logw_V, -1)


def float64_probabilities(logp_V: Tensor) -> Tensor:
    """Float64 probabilities of log-probabilities, as exact as these are: exponentials of float64
    cost twice as much.
    """
    return logp_V.exp().double()


def one_hot(token: int, like_V: Tensor) -> Tensor:
    """Build log-probabilities with all weight on one token.

    Args:
        token: Token id that has probability 1.
        like_V: Any row of the vocabulary; gives shape, dtype and device.

    Returns:
        Log-probabilities, 0 at `token` and -inf elsewhere, shape ``[V]``.
    """
    out = torch.full_like(like_V, NEG_INF)
    out[token] = 0.0
    return out


def residual_law(p_V: Tensor, q_V: Tensor) -> Tensor:
    """Compute the law to draw from after a token drawn from q was rejected: (p - q)+, renormalised.

    Args:
        p_V: Probabilities of the target, shape ``[V]``.
        q_V: Probabilities that the rejected token was drawn from, shape ``[V]``.

    Returns:
        Probabilities, shape ``[V]``; `p_V` itself where rounding left no weight.
    """
    # norm(max(0, p - q)): the residual of speculative sampling (Leviathan et al. 2023, Section
    # 2.3).
    r = (p_V - q_V).clamp_(min=0.0)
    total = float(r.sum())
    if total > 0.0:
        return r / total
    # p equals q up to rounding; then a rejection has probability 0 but for rounding, too.
    return p_V


def exclude_token(p_V: Tensor, token: int) -> Tensor:
    """Remove one token from a law and renormalise the rest.

    Args:
        p_V: Probabilities, shape ``[V]``.
        token: Token id that gets probability 0.

    Returns:
        Probabilities, shape ``[V]``; all zero where no other token had weight.
    """
    out = p_V.clone()
    out[token] = 0.0
    total = float(out.sum())
    if total > 0.0:
        return out / total
    return out


def jensen_shannon_divergence(p_logp_V: Tensor, q_logp_V: Tensor) -> float:
    """Jensen-Shannon divergence of two laws in nats: 0 (the same) to log 2 (no token in common).

    Args:
        p_logp_V: Log-probabilities of the first law, shape ``[V]``.
        q_logp_V: Log-probabilities of the second law, shape ``[V]``.

    Returns:
        The divergence, 0 to log 2.
    """
    p_V = float64_probabilities(p_logp_V)
    q_V = float64_probabilities(q_logp_V)
    # JS(p, q) = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2; xlogy makes 0 log 0 zero.
    m_V = (p_V + q_V) / 2
    return max(
        0.0,
        float(((torch.xlogy(p_V, p_V) + torch.xlogy(q_V, q_V)) / 2 - torch.xlogy(m_V, m_V)).sum()),
    )
