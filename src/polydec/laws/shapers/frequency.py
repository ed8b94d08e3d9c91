"""Frequency penalty: a constant off a token for every time that it was generated before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, append_token_id, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Penalty = Annotated[
    float,
    InRange(-2, 2),
    ValueNote("0 changes nothing"),
    "taken off the logit of a token for each time that it stands in the answer so far",
]


@dataclass(frozen=True)
class FrequencyPenaltyRule:
    """w - penalty * count, count being how often the token stands in the output (the prompt does
    not count); a negative penalty rewards.

    Reduces to: the identity at 0. Raises RequestError outside the range.
    Source: OpenAI API reference.

    Attributes:
        penalty: What each occurrence costs, -2 to 2.
    """

    penalty: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("frequency_penalty", self.penalty, Penalty)

    def start_state(self, prompt: Sequence[int]) -> Ids:
        return token_id_array()

    def next_state(self, state: Ids, token: int) -> Ids:
        """Append the token to the text that the rule remembers.

        Args:
            state: Token ids of the answer so far.
            token: Token id that follows.

        Returns:
            A new array; the old one stays as it is.
        """
        return append_token_id(state, token)

    def shape_law(self, state: Ids, logw_V: Tensor) -> Tensor:
        """Take the penalty off each token as often as it stands in the answer.

        Args:
            state: Token ids of the answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # Each token once, with its count: values differ, so an index may not repeat.
        token_n, count_n = np.unique(state, return_counts=True)
        at = token_id_index(token_n, logw_V)
        out_V = logw_V.clone()
        out_V[at] = logw_V[at] - self.penalty * token_id_index(count_n, logw_V).to(logw_V.dtype)
        return out_V


def make_frequency_penalty_rule(
    setting: SamplingRuleContext, *, frequency_penalty: Penalty = 0.0
) -> FrequencyPenaltyRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        frequency_penalty: What each occurrence costs, -2 to 2; 0 turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if frequency_penalty:
        return FrequencyPenaltyRule(frequency_penalty)
    return None


RULE = SamplingRule(
    "frequency_penalty",
    make_frequency_penalty_rule,
    {"transformers": 30, "vllm": 60, "llamacpp": 60},
    always=True,
)
