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
    """Ban every token but `tokens` (at least one; EOS is banned unless it is one of them). Where
    an earlier shaper has left none of them, those of `eos` follow that are among `tokens`; where
    none is, the row stays as it was: nothing can be written then, and the text's guard says so.

    Reduces to: the identity where all tokens are allowed. Raises RequestError for no token or a
    negative id.
    Source: vLLM, SamplingParams.allowed_token_ids.
    """

    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("allowed_token_ids", self.tokens, Tokens)

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
        """Ban every token but the allowed ones.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``, -inf elsewhere; EOS alone where no allowed token has weight,
            and the row as it is where EOS is not allowed either.
        """
        at = token_id_index(token_id_array(self.tokens), logw_V)
        # Everything is banned, then the allowed tokens get their weights back.
        out_V = torch.full_like(logw_V, NEG_INF)
        out_V[at] = logw_V[at]
        # An end of the text counts only if it is itself allowed.
        return or_end(out_V, logw_V, [x for x in self.eos if x in self.tokens])

    def forbids_token(self, state: None, token: int) -> bool:
        """Tell whether a token is not one of the allowed ones.

        Args:
            state: None.
            token: Token id to look up.

        Returns:
            True where the token must not be written.
        """
        return token not in self.tokens


def make_allowed_tokens_rule(
    setting: SamplingRuleContext, *, allowed_token_ids: Tokens | None = None
) -> AllowedTokensRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its EOS ids are read.
        allowed_token_ids: Token ids that may be written, at least one; None allows all.

    Returns:
        The rule, or None where all tokens are allowed.
    """
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
