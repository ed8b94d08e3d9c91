"""Watermark: the token before says which tokens are green, and green ones are favoured; a count finds them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import (
    AtLeast,
    GreaterThan,
    InRange,
    LessThan,
    ValueNote,
    convert_annotated_value,
)
from polydec.core.rng import Rng
from polydec.core.types import RowDetail
from polydec.laws.shapers._rule import SamplingRule, SamplingRuleContext

Bias = Annotated[
    float,
    InRange(0, 100),
    ValueNote("0 changes nothing, 2 is usual"),
    "watermark: added to the logits of green tokens",
]
Share = Annotated[
    float, GreaterThan(0), LessThan(1), "watermark: how much of the vocabulary is green"
]
Key = Annotated[int, AtLeast(0), "watermark: the secret that says which tokens are green"]


@dataclass(frozen=True)
class WatermarkRule:
    """w + bias for the green tokens: a share of the vocabulary (rounded down, at least one token),
    drawn anew behind each token from (key, that token). Which they are depends on nothing else, so
    whoever has the key and the vocabulary finds them.

    bias: delta, 0 to 100; share: gamma, above 0 and below 1; key: 0 and more.
    polydec.request.detect is the other half.
    Reduces to: the identity at bias 0. Raises RequestError outside the ranges.
    Source: Kirchenbauer et al., "A watermark for large language models", 2023 (soft lists, one
    token of context; the lists themselves are our own stream's, not those of another library).
    """

    bias: float = 2.0
    share: float = 0.25
    key: int = 0
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("watermark_bias", self.bias, Bias)
        check_list(self.share, self.key)

    def start_state(self, prompt: Sequence[int]) -> int:
        return prompt[-1]

    def next_state(self, state: int, token: int) -> int:
        """Return the token: it alone says which tokens are green behind it.

        Args:
            state: The token before; not read.
            token: Token id that follows.

        Returns:
            The token.
        """
        return token

    def shape_law(self, state: int, logw_V: Tensor) -> Tensor:
        """Add the bias to the green tokens.

        Args:
            state: Token id of the last token of the text.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        return logw_V + self.bias * green_token_mask(self.key, state, self.share, len(logw_V)).to(
            logw_V
        )


@lru_cache(maxsize=256)
def green_token_mask(key: int, before: int, share: float, size: int) -> Tensor:
    """Draw which tokens are green behind a token.

    Args:
        key: The secret that names the list, 0 or more.
        before: Token id of the token before.
        share: Part of the vocabulary that is green, above 0 and below 1.
        size: Number of token ids (V).

    Returns:
        True at the green tokens, shape ``[V]``, bool.
    """
    # The largest of V independent draws are a uniform random subset of the vocabulary.
    drawn_V = Rng.of_choice(key).child_stream("watermark", before).gumbel_noise(size).gumbel_V
    green_V = torch.zeros(size, dtype=torch.bool)
    green_V[drawn_V.topk(green_token_count(share, size)).indices] = True
    return green_V


def green_token_count(share: float, size: int) -> int:
    """Count the green tokens of a vocabulary.

    Args:
        share: Part of the vocabulary that is green, above 0 and below 1.
        size: Number of token ids.

    Returns:
        The count, rounded down, at least 1.
    """
    return max(1, int(share * size))


def check_list(share: float, key: int) -> None:
    """Check the parameters of a green list.

    Args:
        share: Part of the vocabulary that is green; it must lie above 0 and below 1.
        key: The secret that names the list; it must be 0 or more.

    Raises:
        RequestError: One of them is out of range.
    """
    convert_annotated_value("watermark_share", share, Share)
    convert_annotated_value("watermark_key", key, Key)


def make_watermark_rule(
    setting: SamplingRuleContext,
    *,
    watermark_bias: Bias = 0.0,
    watermark_share: Share = 0.25,
    watermark_key: Key = 0,
) -> WatermarkRule | None:
    """Make the rule.

    Args:
        setting: What the rule may know of the target and the request; not read.
        watermark_bias: What is added to the logits of green tokens (delta), 0 to 100; 0 turns the
            rule off. Default 0.
        watermark_share: Part of the vocabulary that is green (gamma), above 0 and below 1. Default
            0.25.
        watermark_key: The secret that says which tokens are green, 0 or more. Default 0.

    Returns:
        The rule, or None where it is off.
    """
    if watermark_bias:
        return WatermarkRule(watermark_bias, watermark_share, watermark_key)
    return None


RULE = SamplingRule(
    "watermark",
    make_watermark_rule,
    {"transformers": 300, "vllm": 300, "llamacpp": 300},
    always=True,
    counts=("watermark_bias",),
)  # what another tokenizer would draw means nothing here
