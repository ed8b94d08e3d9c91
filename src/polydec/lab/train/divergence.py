"""How far a draft's law q is from the target's p (DistillSpec), with gradients towards q only.

Source: "DistillSpec", Zhou et al., 2023. All divergences take log-probabilities of N positions over
the C tokens that the draft can propose, and `rest_N`, the target's probability of all tokens that
it cannot (0 where C is the full vocabulary), and give N numbers in nats. A draft never proposes the
rest, so acceptance is exactly 1 - TVD.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import RequestError

Divergence = Callable[[Tensor, Tensor, Tensor], Tensor]


def weighted_log_ratio(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The sum of weight x (a - b) over the last axis; 0 where the weight is 0.

    Args:
        weight: Weights of 0 or more, shape ``[..., C]``.
        a: Logarithms, of the same shape; they may be infinite where the weight is 0.
        b: Logarithms, likewise.

    Returns:
        Nats, shape ``[...]``.
    """
    return torch.where(weight > 0, weight * (a - b), 0.0).sum(-1)


@dataclass(frozen=True)
class ForwardKL:
    """KL(p || q) over the tokens that the draft can propose.

    p is renormalised there, and the result weighted with the probability that p has there. The rest
    itself would add infinity and no gradient. Where it is empty this is the divergence itself.
    """

    def __call__(self, logp_NC: Tensor, logq_NC: Tensor, rest_N: Tensor) -> Tensor:
        # With r = 1 - rest, r KL(p / r || q) = sum of p (log p - log q) - r log r.
        return weighted_log_ratio(logp_NC.exp(), logp_NC, logq_NC) - torch.special.xlog1py(
            1 - rest_N, -rest_N
        )


@dataclass(frozen=True)
class ReverseKL:
    """KL(q || p). It seeks one mode of p: fit for drafts that are drawn at temperature 1."""

    def __call__(self, logp_NC: Tensor, logq_NC: Tensor, rest_N: Tensor) -> Tensor:
        # The bound keeps the loss finite where p is 0.
        return weighted_log_ratio(logq_NC.exp(), logq_NC, logp_NC.clamp_min(-60.0))


@dataclass(frozen=True)
class JensenShannon:
    """beta KL(p || m) + (1 - beta) KL(q || m), with m = beta p + (1 - beta) q.

    Attributes:
        beta: Weight of p, above 0 and below 1. At the default 0.5 the divergence is at most log 2.
    """

    beta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise RequestError(f"beta is {self.beta}: it must lie above 0 and below 1")

    def __call__(self, logp_NC: Tensor, logq_NC: Tensor, rest_N: Tensor) -> Tensor:
        b = self.beta
        # log m, without leaving the logarithms.
        logm = torch.logaddexp(logp_NC + math.log(b), logq_NC + math.log(1 - b))
        unreachable = rest_N * -math.log(b)  # there q = 0 and m = beta p
        return b * (weighted_log_ratio(logp_NC.exp(), logp_NC, logm) + unreachable) + (
            1 - b
        ) * weighted_log_ratio(logq_NC.exp(), logq_NC, logm)


@dataclass(frozen=True)
class TotalVariation:
    """Half the sum of |p - q|: one minus the probability that a token drawn from q is accepted."""

    def __call__(self, logp_NC: Tensor, logq_NC: Tensor, rest_N: Tensor) -> Tensor:
        # The draft has nothing of the rest, so all of it is a difference.
        return ((logp_NC.exp() - logq_NC.exp()).abs().sum(-1) + rest_N) / 2


DIVERGENCES: Mapping[str, Callable[[float], Divergence]] = {
    "fkl": lambda beta: ForwardKL(),
    "rkl": lambda beta: ReverseKL(),
    "jsd": JensenShannon,
    "tvd": lambda beta: TotalVariation(),
}


def divergence_by_name(name: str, beta: float = 0.5) -> Divergence:
    """The divergence of a name.

    Args:
        name: "fkl", "rkl", "jsd" or "tvd".
        beta: Weight of p, read by jsd alone. Default 0.5.

    Returns:
        The divergence.

    Raises:
        RequestError: The name is unknown, or beta out of range.
    """
    if name not in DIVERGENCES:
        raise RequestError(f"divergence is {name!r}: it must be one of {', '.join(DIVERGENCES)}")
    return DIVERGENCES[name](beta)


def acceptance_probability(logp_NC: Tensor, logq_NC: Tensor, rest_N: Tensor) -> Tensor:
    """The probability that exact verification accepts a token drawn from q.

    It is the sum of min(p, q), or 1 - TVD.

    Args:
        logp_NC: The target's log-probabilities of the tokens that the draft can propose, shape
            ``[N, C]``.
        logq_NC: The draft's, shape ``[N, C]``.
        rest_N: The target's probability of all other tokens, shape ``[N]``.

    Returns:
        0 to 1, shape ``[N]``.
    """
    return 1 - TotalVariation()(logp_NC, logq_NC, rest_N)
