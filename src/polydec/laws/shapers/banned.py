"""Banned tokens: any but these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import AtLeast, convert_annotated_value
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import or_end, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Tokens = Annotated[tuple[int, ...], AtLeast(0), "never any of these tokens"]


@dataclass(frozen=True)
class BannedTokensRule:
    """Ban `tokens`. Where that would leave nothing, those of `eos` follow that are not banned;
    where none is left, the row stays as it was: nothing can be written then, and the text's guard
    says so.

    Reduces to: the identity without tokens. Raises RequestError for a negative id.
    Source: Hugging Face transformers, GenerationConfig.suppress_tokens.
    """

    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("bad_token_ids", self.tokens, Tokens)

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
        """Ban the tokens.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``, -inf at the banned tokens; EOS alone where nothing else is
            left.
        """
        out_V = logw_V.clone()
        out_V[token_id_index(token_id_array(self.tokens), logw_V)] = NEG_INF
        # Where nothing is left, the text may end, but not with a banned id.
        return or_end(out_V, logw_V, [x for x in self.eos if x not in self.tokens])

    def forbids_token(self, state: None, token: int) -> bool:
        """Tell whether a token is banned.

        Args:
            state: None.
            token: Token id to look up.

        Returns:
            True where the token must not be written.
        """
        return token in self.tokens


def make_banned_tokens_rule(
    setting: SamplingRuleContext, *, bad_token_ids: Tokens = ()
) -> BannedTokensRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its EOS ids are read.
        bad_token_ids: Token ids that are never written. Default: none.

    Returns:
        The rule, or None where no token is banned.
    """
    if bad_token_ids:
        return BannedTokensRule(bad_token_ids, setting.eos)
    return None


RULE = SamplingRule(
    "bad_token_ids",
    make_banned_tokens_rule,
    {"transformers": 70, "vllm": 20, "llamacpp": 10},
    always=True,
    token_ids=("bad_token_ids",),
)
