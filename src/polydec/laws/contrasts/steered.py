"""SVDecode: further along the way that a short fine-tuning took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF, float64_probabilities
from polydec.laws.contrasts._rows import floor_logprobs, mask_implausible_tokens


@dataclass(frozen=True)
class SteeringVectorContrast:
    """l + strength * d, where d = P (log(P / Q) - KL(P, Q)) is the gradient of KL(P, Q) in the
    logits of P, the first law (the tuned model), Q being the other (the model before tuning); d
    counts only for tokens that have at least the fraction `head` of the likeliest one's probability
    under P.

    strength: mu, 0 to 1000 (`polydec train strength` finds it); head: 0 (all tokens) to 1.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law at strength 0, and where both laws are the same. Raises RequestError
    outside the ranges.
    Source: "Distribution-aligned decoding for efficient LLM task adaptation" (SVDecode), 2025; the
    head is our choice.
    """

    strength: float = 1.0
    head: float = 0.1
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, high in (("strength", 1000.0), ("head", 1.0)):
            if not 0.0 <= getattr(self, name) <= high:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to {high:g}")

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return True

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Move the first law along the steering direction: l + strength d.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        return first_V + self.strength * steering_direction(first_V, others[0], self.head)


def steering_direction(first_V: Tensor, other_V: Tensor, head: float = 0.0) -> Tensor:
    """Compute the gradient of KL(P, Q) in the logits of P: d = P (log(P / Q) - KL(P, Q)).

    Args:
        first_V: Log-probabilities of P, the tuned model, shape ``[V]``.
        other_V: Log-probabilities of Q, the model before tuning, shape ``[V]``.
        head: Fraction of the largest probability under P below which d is 0, 0 to 1. Default 0: no
            token is left out.

    Returns:
        The direction d, shape ``[V]``; it sums to 0 at head 0.
    """
    p_V = float64_probabilities(first_V)
    # log(P / Q); tokens without weight under P do not count.
    apart_V = torch.where(first_V > NEG_INF, floor_logprobs(first_V) - floor_logprobs(other_V), 0.0)
    # The mean under P is taken off, so d sums to 0.
    d_V = (p_V * (apart_V - (p_V * apart_V).sum())).to(first_V.dtype)
    return torch.where(mask_implausible_tokens(d_V, first_V, head) > NEG_INF, d_V, 0.0)


def calibrate_steering_strength(
    rows: Iterable[tuple[Tensor, Tensor, int]], head: float = 0.1
) -> float:
    """Find the strength that makes given tokens likeliest, by one Gauss-Newton step from 0.

    The step is exact to second order: the likelihood's slope at strength 0 over its curvature
    there.

    Args:
        rows: For each position of a calibration text the log-probabilities of the first law and of
            the other, each of shape ``[V]``, and the token id that stands there.
        head: As for `steering_direction`, 0 to 1. Default 0.1.

    Returns:
        The strength, at least 0.
    """
    # Slope and curvature of the log-likelihood at strength 0, summed over positions.
    slope = curve = 0.0
    for first_V, other_V, token in rows:
        p_V = float64_probabilities(first_V)
        d_V = steering_direction(first_V, other_V, head).double()
        # d log p(token) / d strength = d[token] - E_p[d]; the curvature is the variance of d under
        # p.
        mean = float((p_V * d_V).sum())
        slope += float(d_V[token]) - mean
        curve += float((p_V * (d_V - mean).square()).sum())
    # The small addend guards against rows in which d is 0 everywhere.
    return max(0.0, slope / (curve + 1e-8))
