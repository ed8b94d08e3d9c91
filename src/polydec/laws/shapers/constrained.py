"""Constrained: no text but those of a language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.laws.shapers._rows import or_end
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext


@dataclass(frozen=True)
class ConstraintRule:
    """Ban every token with which the answer is no beginning of a text of `language`, and ends
    before it is whole.

    The answer begins behind the prompt: what the prompt holds is no part of it. Where an earlier
    shaper has left no allowed token, those of `eos` follow that are allowed; where none is, the row
    stays as it was: nothing can be written then, and the text's guard says so.

    A language may lean towards some of its tokens (`token_lean`): what it says is added to their
    log-weights, as the soft end of a budget of thinking does.

    What is left is made to add up to 1 at every token. That is not the model's law of the texts
    that are allowed: see docs/constraints.md.

    Reduces to: the identity where all texts are allowed.
    Source: Willard and Louf, "Efficient guided generation for large language models", 2023.
    """

    language: TokenLanguage[Any]
    eos: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def start_state(self, prompt: Sequence[int]) -> Any:
        return self.language.start_state()

    def next_state(self, state: Any, token: int) -> Any:
        """Advance the state of the language by one token of the answer.

        Args:
            state: State of the language behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer.
        """
        return self.language.next_state(state, token)

    def shape_law(self, state: Any, logw_V: Tensor) -> Tensor:
        """Ban every token with which the answer cannot become a text of the language.

        Args:
            state: State of the language behind the answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``, -inf at the tokens that are not allowed.
        """
        # The language gives its mask on the host, bool, shape [V].
        mask_V = self.language.token_mask(state).to(logw_V.device)
        out_V = torch.where(mask_V, logw_V, NEG_INF)
        # Only a language with a soft end leans: all others leave the weights of what they allow.
        lean = getattr(self.language, "token_lean", None)
        if lean is not None:
            for token, weight in lean(state).items():
                out_V[token] += weight
        return or_end(out_V, logw_V, [x for x in self.eos if self.language.allows_token(state, x)])

    def forbids_token(self, state: Any, token: int) -> bool:
        """Tell whether the language does not allow a token.

        Args:
            state: State of the language behind the answer so far.
            token: Token id to look up.

        Returns:
            True where the token must not be written.
        """
        return not self.language.allows_token(state, token)


def make_constraint_rule(setting: SamplingRuleContext) -> ConstraintRule | None:
    if setting.language is None:
        return None
    return ConstraintRule(setting.language, setting.eos)


RULE = SamplingRule(
    "constraint", make_constraint_rule, {"transformers": 95, "vllm": 5, "llamacpp": 5}, always=True
)
