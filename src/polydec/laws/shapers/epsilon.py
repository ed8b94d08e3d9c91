"""Epsilon cutoff: tokens of a probability that is not too small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import AtLeast, LessThan, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Least = Annotated[
    float,
    AtLeast(0),
    LessThan(1),
    ValueNote("0 keeps every token"),
    "keep tokens of at least this probability",
]


@dataclass(frozen=True)
class EpsilonCutoffRule:
    """Keep a token where its probability is at least `epsilon`, 0 <= epsilon < 1 (usual: 3e-4 to
    9e-4); the likeliest always stays.

    Reduces to: the identity at 0. Raises RequestError outside the range.
    Source: Hewitt, Manning and Liang, "Truncation sampling as language model desmoothing", 2022.
    """

    epsilon: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("epsilon_cutoff", self.epsilon, Least)

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
        """Cut off the tokens whose probability is below epsilon.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # log 0 has no value: at 0 every token stays.
        if self.epsilon == 0.0:
            return logw_V
        # The edge is log epsilon, but at most the largest log-weight: the likeliest token stays.
        return at_least(
            logw_V, torch.minimum(logw_V.logsumexp(-1) + math.log(self.epsilon), logw_V.max())
        )


def make_epsilon_cutoff_rule(
    setting: SamplingRuleContext, *, epsilon_cutoff: Least = 0.0
) -> EpsilonCutoffRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        epsilon_cutoff: Smallest probability that stays, 0 to below 1; 0 turns the rule off. Default
            0.

    Returns:
        The rule, or None where it is off.
    """
    if epsilon_cutoff:
        return EpsilonCutoffRule(epsilon_cutoff)
    return None


RULE = SamplingRule(
    "epsilon_cutoff", make_epsilon_cutoff_rule, {"transformers": 150, "vllm": 150, "llamacpp": 150}
)
