"""Eta cutoff: an epsilon cutoff that sinks where the law is flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import AtLeast, LessThan, ValueNote, convert_annotated_value
from polydec.core.law import normalise_log_weights
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Least = Annotated[
    float,
    AtLeast(0),
    LessThan(1),
    ValueNote("0 keeps every token"),
    "keep tokens of at least this probability, or less where the law is flat",
]


@dataclass(frozen=True)
class EtaCutoffRule:
    """Keep a token where its probability is at least min(epsilon, sqrt(epsilon) * exp(-entropy)),
    0 <= epsilon < 1 (usual: 2e-4 to 2e-3); the likeliest always stays.

    Reduces to: the identity at 0. Raises RequestError outside the range.
    Source: Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing", 2022.
    """

    epsilon: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("eta_cutoff", self.epsilon, Least)

    def start_state(self, prompt: Sequence[int]) -> None:
        return None

    def next_state(self, state: None, token: int) -> None:
        """Return None: this rule does not depend on the text before a token.

        Args:
            state: None.
            token: Token id that follows; not read.

        Returns:
            None.
        """
        return None

    def shape_law(self, state: None, logw_V: Tensor) -> Tensor:
        """Cut off the tokens whose probability is below the eta of this law.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        if self.epsilon == 0.0:
            return logw_V
        logp_V = normalise_log_weights(logw_V)
        log_eps = math.log(self.epsilon)
        # In nats; 0 * -inf of a token without weight counts as 0.
        entropy = -(logp_V.exp() * logp_V).nansum()
        # log eta = min(log eps, log eps / 2 - entropy); the likeliest token stays in any case.
        return at_least(
            logp_V, torch.minimum((log_eps / 2 - entropy).clamp(max=log_eps), logp_V.max())
        )


def make_eta_cutoff_rule(
    setting: SamplingRuleContext, *, eta_cutoff: Least = 0.0
) -> EtaCutoffRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        eta_cutoff: Epsilon of the rule, 0 to below 1; 0 turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if eta_cutoff:
        return EtaCutoffRule(eta_cutoff)
    return None


RULE = SamplingRule(
    "eta_cutoff", make_eta_cutoff_rule, {"transformers": 160, "vllm": 160, "llamacpp": 160}
)
