"""Repetition penalty: tokens that stand in the text get less likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, append_token_id, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Penalty = Annotated[
    float,
    InRange(0.001, 1000),
    ValueNote("1 changes nothing"),
    "positive logits of tokens in the text are divided by it, others multiplied",
]


@dataclass(frozen=True)
class RepetitionPenaltyRule:
    """z / penalty where z > 0, z * penalty elsewhere, for every token of prompt and output (EOS
    too).

    penalty: 0.001 to 1,000 (further out floats would not hold); below 1 it rewards; window: only the
    last so many tokens count, at least 1 (None: all). Defined on
    logits: it looks at their sign, so it belongs before anything that normalises; after a target
    that makes its own law it acts on that law's log-weights.

    Reduces to: the identity at 1. Raises RequestError outside the range.
    Source: Keskar et al., "CTRL: a conditional transformer language model for controllable
    generation", 2019.
    """

    penalty: float
    window: int | None = None
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("repetition_penalty", self.penalty, Penalty)

    def start_state(self, prompt: Sequence[int]) -> Ids:
        return self._counted(token_id_array(prompt))

    def next_state(self, state: Ids, token: int) -> Ids:
        """Append the token to the text that the rule remembers.

        Args:
            state: Token ids of prompt and answer so far.
            token: Token id that follows.

        Returns:
            A new array; the old one stays as it is.
        """
        return self._counted(append_token_id(state, token))

    def _counted(self, text_n: Ids) -> Ids:
        """The tokens of a text that count."""
        if self.window is None:
            return text_n
        return text_n[-self.window :]

    def shape_law(self, state: Ids, logw_V: Tensor) -> Tensor:
        """Make every token of the text less likely: divide positive logits, multiply negative ones.

        Args:
            state: Token ids of prompt and answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        at = token_id_index(state, logw_V)
        out_V = logw_V.clone()
        # Gather, bend, scatter: ids that repeat get the same value.
        z = logw_V[at]
        out_V[at] = torch.where(z > 0, z / self.penalty, z * self.penalty)
        return out_V


def make_repetition_penalty_rule(
    setting: SamplingRuleContext, *, repetition_penalty: Penalty = 1.0
) -> RepetitionPenaltyRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        repetition_penalty: The factor, 0.001 to 1,000; 1 turns the rule off. Default 1.

    Returns:
        The rule, or None where it is off.
    """
    if repetition_penalty != 1.0:
        return RepetitionPenaltyRule(repetition_penalty)
    return None


RULE = SamplingRule(
    "repetition_penalty",
    make_repetition_penalty_rule,
    {"transformers": 20, "vllm": 50, "llamacpp": 50},
    always=True,
)
