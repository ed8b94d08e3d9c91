"""Presence penalty: a constant off every token that was generated before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, append_token_id, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Penalty = Annotated[
    float,
    InRange(-2, 2),
    ValueNote("0 changes nothing"),
    "taken off the logit of every token of the answer so far",
]


@dataclass(frozen=True)
class PresencePenaltyRule:
    """w - penalty for every token of the output (the prompt does not count); a negative penalty
    rewards.

    Reduces to: the identity at 0. Raises RequestError outside the range.
    Source: OpenAI API reference.

    Attributes:
        penalty: What a token of the output costs, -2 to 2.
    """

    penalty: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("presence_penalty", self.penalty, Penalty)

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
        """Take the penalty off every token that stands in the answer.

        Args:
            state: Token ids of the answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        at = token_id_index(state, logw_V)
        out_V = logw_V.clone()
        # Ids may repeat in the index: each write is the same value, so a token pays once.
        out_V[at] = logw_V[at] - self.penalty
        return out_V


def make_presence_penalty_rule(
    setting: SamplingRuleContext, *, presence_penalty: Penalty = 0.0
) -> PresencePenaltyRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        presence_penalty: What a token of the answer costs, -2 to 2; 0 turns the rule off. Default
            0.

    Returns:
        The rule, or None where it is off.
    """
    if presence_penalty:
        return PresencePenaltyRule(presence_penalty)
    return None


RULE = SamplingRule(
    "presence_penalty",
    make_presence_penalty_rule,
    {"transformers": 40, "vllm": 70, "llamacpp": 70},
    always=True,
)
