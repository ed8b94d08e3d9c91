"""Momentum decoding: of the likeliest tokens the one that pays for the least repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from polydec.base.options import AtLeast, InRange, ValueNote, convert_annotated_value
from polydec.core.law import NEG_INF, float64_probabilities
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, append_token_id, token_id_array
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Alpha = Annotated[
    float,
    InRange(0, 1),
    ValueNote("0 changes nothing, 0.2 is published"),
    "momentum: probability that each token of a repeated run costs",
]
Candidates = Annotated[int, AtLeast(1), "momentum: how many of the likeliest tokens are looked at"]
Longest = Annotated[
    int, InRange(1, 64), "momentum: longest repeated run that is told from longer ones"
]


@dataclass(frozen=True)
class MomentumRule:
    """Of the k likeliest tokens, log(p - alpha L); all others go. L is the resistance of a token:
    0 where it does not stand in the text (prompt and output), else the length, itself counted, of
    the longest run at the end of the text that it would repeat, `longest` at most. Tokens at or
    below 0 go too, but for the best of them where nothing is above.

    alpha: 0 to 1; k: at least 1; longest: 1 to 64. With a greedy last rule this is the published,
    deterministic method; drawn from, it is a variant of ours.

    Reduces to: top-k at alpha 0 (with greedy: greedy decoding). Raises RequestError outside the
    ranges.
    Source: Lan et al., "Momentum decoding: open-ended text generation as graph exploration", 2022.
    """

    alpha: float = 0.2
    k: int = 5
    longest: int = 5
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("momentum_alpha", self.alpha, Alpha)
        convert_annotated_value("momentum_top_k", self.k, Candidates)
        convert_annotated_value("momentum_longest", self.longest, Longest)

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

    def shape_law(self, state: Ids, logw_V: Tensor) -> Tensor:
        """Lower the probabilities of the likeliest tokens by their resistance; all other tokens go.

        Args:
            state: Token ids of prompt and answer so far.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        # The candidates: the k likeliest tokens, as far as they have weight.
        value_K, token_K = logw_V.topk(min(self.k, len(logw_V)))
        token_K = token_K[value_K > NEG_INF].sort().values
        resistance = [self.repetition_length(state, x) for x in token_K.tolist()]
        # Probabilities under the complete law, not renormalised over the candidates.
        p_K = float64_probabilities(torch.log_softmax(logw_V, -1))[token_K]
        score_K = p_K - self.alpha * torch.tensor(resistance, dtype=p_K.dtype, device=p_K.device)
        best = score_K.max()
        # Scores at or below 0 have no logarithm; where there are no others, the best stays.
        left_K = (score_K > 0.0) | ((score_K == best) & (best <= 0.0))
        out_V = torch.full_like(logw_V, NEG_INF)
        out_V[token_K[left_K]] = score_K[left_K].clamp(min=1e-30).log().to(logw_V.dtype)
        return out_V

    def repetition_length(self, text_n: Ids, token: int) -> int:
        """Measure how long a run of the text a token would repeat.

        Args:
            text_n: Token ids of prompt and answer so far, shape ``[n]``.
            token: Token id to look up.

        Returns:
            Length of the run in tokens, the token itself counted: 0 to `longest`.
        """
        at = np.flatnonzero(text_n == token)
        length = 0
        # Each round, the run grows one token to the left: places stay where that token matches the
        # end of the text.
        while len(at) and length < self.longest:
            length += 1
            # A run cannot begin before the text.
            at = at[at >= length]
            if length <= len(text_n):
                at = at[text_n[at - length] == text_n[-length]]
            else:
                at = at[:0]
        return length


def make_momentum_rule(
    setting: SamplingRuleContext,
    *,
    momentum_alpha: Alpha = 0.0,
    momentum_top_k: Candidates = 5,
    momentum_longest: Longest = 5,
) -> MomentumRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        momentum_alpha: Probability that each token of a repeated run costs, 0 to 1; 0 turns the
            rule off. Default 0.
        momentum_top_k: How many of the likeliest tokens may stay, at least 1. Default 5.
        momentum_longest: Longest run that is measured, in tokens, 1 to 64. Default 5.

    Returns:
        The rule, or None where it is off.
    """
    if momentum_alpha:
        return MomentumRule(momentum_alpha, momentum_top_k, momentum_longest)
    return None


RULE = SamplingRule(
    "momentum", make_momentum_rule, {"transformers": 105, "vllm": 105, "llamacpp": 85}, always=True
)
