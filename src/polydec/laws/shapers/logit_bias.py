"""Logit bias: a constant added to some tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import InRange, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Bias = Annotated[
    Mapping[int, float],
    InRange(-100, 100),
    ValueNote("bad_token_ids bans a token"),
    "added to the logits of tokens",
]


@dataclass(frozen=True)
class LogitBiasRule:
    """w + b for the given tokens: {id: b} or pairs (id, b), b in -100 to 100.

    Reduces to: the identity where all b are 0. Raises RequestError for a bias out of range, or a
    negative id.
    Source: OpenAI API reference.
    """

    bias: tuple[tuple[int, float], ...]
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __init__(self, bias: Mapping[int, float] | Sequence[tuple[int, float]]) -> None:
        pairs: dict[int, float] = convert_annotated_value("logit_bias", dict(bias), Bias)
        # In order of ids, so that equal biases make equal rules.
        object.__setattr__(self, "bias", tuple(sorted(pairs.items())))

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
        """Add the bias to the tokens that have one.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        out_V = logw_V.clone()
        out_V[token_id_index(self._ids, logw_V)] += self._added.to(logw_V)
        return out_V

    @cached_property
    def _ids(self) -> Ids:
        return token_id_array([x for x, _ in self.bias])

    @cached_property
    def _added(self) -> Tensor:
        return torch.tensor([b for _, b in self.bias], dtype=torch.float64)


def make_logit_bias_rule(
    setting: SamplingRuleContext, *, logit_bias: Bias | None = None
) -> LogitBiasRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        logit_bias: What is added, by token id, -100 to 100; None or empty turns the rule off.

    Returns:
        The rule, or None where it is off.
    """
    if logit_bias:
        return LogitBiasRule(logit_bias)
    return None


RULE = SamplingRule(
    "logit_bias",
    make_logit_bias_rule,
    {"transformers": 10, "vllm": 40, "llamacpp": 40},
    always=True,
    token_ids=("logit_bias",),
)
