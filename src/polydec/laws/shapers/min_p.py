"""Min-p: tokens at least a fraction as likely as the likeliest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Fraction = Annotated[
    float,
    InRange(0, 1),
    ValueNote("0 keeps every token"),
    "keep tokens at least this fraction as likely as the likeliest",
]


@dataclass(frozen=True)
class MinPRule:
    """Keep a token where its probability is at least `p` times that of the likeliest, 0 <= p <= 1.

    Reduces to: the identity at 0; at 1 the likeliest token and its equals stay. Raises RequestError
    outside the range.
    Source: Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM
    outputs", 2024.
    """

    p: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_annotated_value("min_p", self.p, Fraction)

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
        """Cut off the tokens below a fraction of the largest probability.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # log 0 has no value: at 0 every token stays.
        if self.p == 0.0:
            return logw_V
        # A ratio of probabilities is a difference of log-weights: nothing needs to be normalised.
        return at_least(logw_V, logw_V.max() + math.log(self.p))


def make_min_p_rule(setting: SamplingRuleContext, *, min_p: Fraction = 0.0) -> MinPRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        min_p: Fraction of the largest probability, 0 to 1; 0 turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if min_p:
        return MinPRule(min_p)
    return None


RULE = SamplingRule("min_p", make_min_p_rule, {"transformers": 130, "vllm": 110, "llamacpp": 140})
