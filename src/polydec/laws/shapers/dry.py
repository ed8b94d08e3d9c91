"""DRY (don't repeat yourself): the longer a repetition that a token would go on with, the larger its penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, ValueNote, convert_annotated_value
from polydec.core.types import RowDetail
from polydec.laws.shapers._rows import Ids, token_id_array, token_id_index
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

LARGEST = 1e30  # of a penalty: it must leave the log-weight finite

State = tuple[
    Ids, Ids
]  # the window of the text, and per place how much of the text's end also ends there


Multiplier = Annotated[
    float,
    AtLeast(0),
    ValueNote("0 changes nothing"),
    "DRY: taken off the logit of a token that goes on with the shortest repetition that counts",
]
Base = Annotated[
    float, AtLeast(1), "DRY: factor of the penalty for each token that the repetition is longer"
]
Allowed = Annotated[int, AtLeast(1), "DRY: length of the shortest repetition that counts"]
Window = Annotated[
    int, AtLeast(-1), ValueNote("-1 looks at the whole text"), "DRY: last tokens looked at"
]
Breakers = Annotated[
    tuple[int, ...], AtLeast(0), "DRY: a repetition does not reach across these tokens"
]


@dataclass(frozen=True)
class DryRule:
    """w - multiplier * base ** (m - allowed_length) for a token that followed an earlier
    occurrence of the last m tokens of prompt and output, m >= allowed_length being the longest
    such; a match reaches back to a breaker (left out) or to the window's edge. An occurrence may
    overlap the end of the text.

    multiplier >= 0 (usual 0.8), base >= 1, allowed_length >= 1, window: tokens looked at (None:
    all), breakers: token ids. A step and a shape cost O(window).

    Reduces to: the identity at multiplier 0. Raises RequestError outside the ranges.
    Source: p-e-w, "DRY: a modern repetition penalty", text-generation-webui pull request 5677,
    2024.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    window: int | None = None
    breakers: tuple[int, ...] = ()
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("dry_multiplier", self.multiplier, Multiplier)
        convert_annotated_value("dry_base", self.base, Base)
        convert_annotated_value("dry_allowed_length", self.allowed_length, Allowed)
        if self.window is not None and self.window < 0:
            raise RequestError(
                f"dry window is {self.window}: it must be at least 0, or None for the whole text"
            )
        convert_annotated_value("dry_sequence_breakers", self.breakers, Breakers)

    def start_state(self, prompt: Sequence[int]) -> State:
        text_n = token_id_array(prompt)
        # Matches never reach beyond the window.
        if self.window is not None:
            text_n = text_n[max(0, len(text_n) - self.window) :]
        # run_n[i]: how many tokens up to place i equal as many tokens at the end of the text.
        run_n = np.zeros_like(text_n)
        # Every place but the last, which equals the end of the text in any case.
        at = np.arange(len(text_n) - 1)
        # One token further back at a time: places stay while that token matches, too.
        for back in range(len(text_n)):
            at = at[at >= back]
            at = at[text_n[at - back] == text_n[len(text_n) - 1 - back]]
            if not len(at) or int(text_n[len(text_n) - 1 - back]) in self.breakers:
                break
            run_n[at] += 1
        return text_n, run_n

    def next_state(self, state: State, token: int) -> State:
        """Append a token, and update the lengths of the matches.

        Args:
            state: Token ids in the window, and for each place how many tokens before and at it
                equal the end of the text.
            token: Token id that follows.

        Returns:
            The state behind the longer text.
        """
        text_n, run_n = state
        longer_n = np.zeros(len(text_n) + 1, dtype=np.int64)
        # A breaker ends every match. Otherwise a place matches one token more than its left
        # neighbour did if it holds the new token.
        if token not in self.breakers:
            longer_n[1:-1] = run_n[:-1]
            longer_n[:-1] += 1
            longer_n[:-1][text_n != token] = 0
        text_n = np.append(text_n, token)
        if self.window is not None:
            cut = max(0, len(text_n) - self.window)
            text_n = text_n[cut:]
            longer_n = longer_n[cut:]
        return text_n, longer_n

    def shape_law(self, state: State, logw_V: Tensor) -> Tensor:
        """Take a penalty off every token that would continue a repetition.

        Args:
            state: The window of the text, and the match length at each of its places.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        text_n, run_n = state
        run_n = np.minimum(
            run_n, np.arange(1, len(run_n) + 1)
        )  # what a match may take of the window
        # Places whose match is long enough; the token behind each of them gets the penalty.
        at = np.flatnonzero(run_n >= self.allowed_length)
        if not len(at) or not self.multiplier:
            return logw_V
        # base ** length overflows to inf for long matches; the limit below makes it finite.
        with np.errstate(over="ignore"):
            penalty_n = self.multiplier * np.power(
                self.base, (run_n[at] - self.allowed_length).astype(np.float64)
            )
        # In ascending order, so that the last entry of a token in the dict is its largest penalty.
        order = np.argsort(
            penalty_n, kind="stable"
        )  # of a token that followed twice the largest one counts
        worst = dict(
            zip(
                # The token that followed the earlier occurrence is the one that would continue it.
                text_n[at + 1][order].tolist(),
                np.minimum(penalty_n, LARGEST)[order].tolist(),
                strict=True,
            )
        )
        token = token_id_index(token_id_array(list(worst)), logw_V)
        out_V = logw_V.clone()
        out_V[token] = logw_V[token] - torch.tensor(
            list(worst.values()), dtype=logw_V.dtype, device=logw_V.device
        )
        return out_V


def make_dry_rule(
    setting: SamplingRuleContext,
    *,
    dry_multiplier: Multiplier = 0.0,
    dry_base: Base = 1.75,
    dry_allowed_length: Allowed = 2,
    dry_penalty_last_n: Window = -1,
    dry_sequence_breakers: Breakers = (),
) -> DryRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        dry_multiplier: Penalty of the shortest repetition that counts, 0 or more; 0 turns the rule
            off. Default 0.
        dry_base: Factor for each token that a repetition is longer, at least 1. Default 1.75.
        dry_allowed_length: Length in tokens of the shortest repetition that counts, at least 1.
            Default 2.
        dry_penalty_last_n: How many of the last tokens are looked at; -1: all. Default -1.
        dry_sequence_breakers: Token ids across which no repetition reaches. Default: none.

    Returns:
        The rule, or None where it is off.
    """
    # A negative length means the complete text.
    if dry_penalty_last_n < 0:
        window = None
    else:
        window = dry_penalty_last_n
    if dry_multiplier:
        return DryRule(dry_multiplier, dry_base, dry_allowed_length, window, dry_sequence_breakers)
    return None


RULE = SamplingRule(
    "dry",
    make_dry_rule,
    {"transformers": 50, "vllm": 90, "llamacpp": 90},
    always=True,
    token_ids=("dry_sequence_breakers",),
)
