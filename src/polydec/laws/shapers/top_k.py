"""Top-k: the k likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, ValueNote
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import at_least
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext


@dataclass(frozen=True)
class TopKRule:
    """Keep every token as likely as the k-th likeliest (k >= 1): all of those that tie with it, so
    more than k may stay.

    Reduces to: the identity where k is the vocabulary's size or more, Greedy at k = 1 without ties.
    Raises RequestError outside the range. Source: Fan, Lewis and Dauphin, "Hierarchical neural
    story generation", 2018.
    """

    k: int
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.k < 1:
            raise RequestError(
                f"top_k is {self.k}: it must be at least 1 (leave it out to keep every token)"
            )

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
        """Cut off the tokens that are less likely than the k-th likeliest.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        if self.k >= logw_V.shape[-1]:
            return logw_V
        # The smallest of the k largest weights is the edge; what ties with it stays.
        return at_least(logw_V, logw_V.topk(self.k, sorted=False).values.min())


def make_top_k_rule(
    setting: SamplingRuleContext,
    *,
    top_k: Annotated[
        int,
        AtLeast(-1),
        ValueNote("0 or -1 keeps every token"),
        "keep so many of the likeliest tokens",
    ] = 0,
) -> TopKRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        top_k: How many of the likeliest tokens stay; 0 or -1 turns the rule off. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if top_k > 0:
        return TopKRule(top_k)
    return None


RULE = SamplingRule("top_k", make_top_k_rule, {"transformers": 110, "vllm": 120, "llamacpp": 110})
