"""No repeated n-gram: no token that would complete an n-gram of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, ValueNote
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, append_token_id, or_end, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext


@dataclass(frozen=True)
class NoRepeatNgramRule:
    """Ban every token that followed an earlier occurrence of the last size - 1 tokens of prompt
    and output, size >= 1 (1: no token twice). Where that would leave nothing, those of `eos` follow
    that are not banned; where none is left, the row stays as it was: nothing can be written then,
    and the text's guard says so.

    Reduces to: the identity while no n-gram begins again. Raises RequestError outside the range.
    Source: Paulus, Xiong and Socher, "A deep reinforced model for abstractive summarization", 2018.
    """

    size: int
    eos: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RequestError(
                f"no_repeat_ngram_size is {self.size}: it must be at least 1 (leave it out to allow all)"
            )

    def start_state(self, prompt: Sequence[int]) -> Ids:
        return token_id_array(prompt)

    def next_state(self, state: Ids, token: int) -> Ids:
        """Append the token to the text that the rule remembers.

        Args:
            state: Token ids of prompt and answer so far.
            token: Token id that follows.

        Returns:
            A new array; the old one stays as it is.
        """
        return append_token_id(state, token)

    def _banned(self, state: Ids) -> Ids:
        """The tokens that would end an n-gram of the text once more."""
        at = np.arange(self.size - 1, len(state))  # where the last token of an n-gram stands
        # Places stay where the size - 1 tokens before them equal the end of the text.
        for back in range(1, self.size):
            at = at[state[at - back] == state[-back]]
        return state[at]

    def shape_law(self, state: Ids, logw_V: Tensor) -> Tensor:
        """Ban the tokens that would complete an n-gram of the text once more.

        Args:
            state: Token ids of prompt and answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; EOS alone where nothing else is left.
        """
        # A text shorter than an n-gram repeats none.
        if len(state) >= self.size:
            banned = self._banned(state)
        else:
            banned = token_id_array()
        if not len(banned):
            return logw_V
        out_V = logw_V.clone()
        out_V[token_id_index(banned, logw_V)] = NEG_INF
        # The text may end, unless that would repeat an n-gram, too.
        return or_end(out_V, logw_V, [x for x in self.eos if x not in banned])

    def forbids_token(self, state: Ids, token: int) -> bool:
        """Tell whether a token would complete an n-gram of the text once more.

        Args:
            state: Token ids of prompt and answer so far.
            token: Token id to look up.

        Returns:
            True where the token must not be written.
        """
        return len(state) >= self.size and token in self._banned(state)


def make_repeated_ngram_rule(
    setting: SamplingRuleContext,
    *,
    no_repeat_ngram_size: Annotated[
        int,
        AtLeast(0),
        ValueNote("0 allows every n-gram"),
        "no n-gram of this length twice, prompt included",
    ] = 0,
) -> NoRepeatNgramRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request: its EOS ids are read.
        no_repeat_ngram_size: Length of the n-grams in tokens, 0 or more; 0 turns the rule off.
            Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if no_repeat_ngram_size:
        return NoRepeatNgramRule(no_repeat_ngram_size, setting.eos)
    return None


RULE = SamplingRule(
    "no_repeat_ngram_size",
    make_repeated_ngram_rule,
    {"transformers": 60, "vllm": 80, "llamacpp": 80},
    always=True,
)
