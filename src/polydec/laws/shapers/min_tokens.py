"""Minimum length: the answer does not end before so many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import or_end, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext


@dataclass(frozen=True)
class MinTokensRule:
    """Ban `ends` (EOS ids and stop ids alike) while the output has fewer than `count` tokens,
    count >= 0. Where an earlier shaper has left nothing else, the row stays as it was: nothing can
    be written then, and the text's guard says so.

    Reduces to: the identity at 0. Raises RequestError outside the range or for a negative id.
    Source: vLLM, SamplingParams.min_tokens.
    """

    count: int
    ends: tuple[int, ...]
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.count < 0:
            raise RequestError(f"min_tokens is {self.count}: it must be at least 0")
        if min(self.ends, default=0) < 0:
            raise RequestError(f"min_tokens has the end token {min(self.ends)}: ids are at least 0")

    def start_state(self, prompt: Sequence[int]) -> int:
        return 0

    def next_state(self, state: int, token: int) -> int:
        """Count one more token of the answer.

        Args:
            state: Tokens of the answer so far.
            token: Token id that follows; not read.

        Returns:
            The count behind it.
        """
        return state + 1

    def shape_law(self, state: int, logw_V: Tensor) -> Tensor:
        """Ban the ends while the answer is too short.

        Args:
            state: Tokens of the answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; the row itself where nothing but an end is left.
        """
        if state >= self.count:
            return logw_V
        out_V = logw_V.clone()
        out_V[token_id_index(token_id_array(self.ends), logw_V)] = NEG_INF
        # No EOS is offered as a way out: to end is what the rule forbids.
        return or_end(out_V, logw_V)

    def forbids_token(self, state: int, token: int) -> bool:
        """Tell whether a token would end the answer too early.

        Args:
            state: Tokens of the answer so far.
            token: Token id to look up.

        Returns:
            True where the token must not be written.
        """
        return state < self.count and token in self.ends


def make_min_tokens_rule(
    setting: SamplingRuleContext,
    *,
    min_tokens: Annotated[
        int, AtLeast(0), "no EOS, stop id or stop text before so many tokens"
    ] = 0,
) -> MinTokensRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its ids that end an answer
            are read.
        min_tokens: Least tokens of an answer, 0 or more; 0 turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off or no id ends an answer.
    """
    if min_tokens and setting.ends:
        return MinTokensRule(min_tokens, setting.ends)
    return None


RULE = SamplingRule(
    "min_tokens",
    make_min_tokens_rule,
    {"transformers": 80, "vllm": 30, "llamacpp": 20},
    always=True,
    counts=("min_tokens",),
)
