"""Allowed tokens: these and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import AtLeast, EntryCount, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import or_end, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Tokens = Annotated[
    tuple[int, ...],
    AtLeast(0),
    EntryCount(1),
    ValueNote("none allows all"),
    "no other tokens than these",
]


@dataclass(frozen=True)
class AllowedTokensRule:
    """Ban every token but `tokens` (at least one; EOS is banned unless it is one of them). Where an earlier shaper has
    left none of them, those of `eos` follow that are among `tokens`; where none is, the row stays as it was: nothing can be
    written then, and the text's guard says so.

    Reduces to: the identity where all tokens are allowed. Raises RequestError for no token or a negative id.
    Source: vLLM, SamplingParams.allowed_token_ids.
    """

    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("allowed_token_ids", self.tokens, Tokens)

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        at = token_id_index(token_id_array(self.tokens), logw_V)
        out_V = torch.full_like(logw_V, NEG_INF)
        out_V[at] = logw_V[at]
        return or_end(out_V, logw_V, [x for x in self.eos if x in self.tokens])

    def forbids(self, state: None, token: int) -> bool:
        return token not in self.tokens


def make_allowed_tokens_rule(
    setting: SamplingRuleContext, *, allowed_token_ids: Tokens | None = None
) -> AllowedTokensRule | None:
    if allowed_token_ids is None:
        return None
    return AllowedTokensRule(allowed_token_ids, setting.eos)


RULE = SamplingRule(
    "allowed_token_ids",
    make_allowed_tokens_rule,
    {"transformers": 90, "vllm": 10, "llamacpp": 30},
    always=True,
    token_ids=("allowed_token_ids",),
)
