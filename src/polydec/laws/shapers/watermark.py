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
    """w + bias for the green tokens: a share of the vocabulary (rounded down, at least one token), drawn anew behind each token
    from (key, that token). Which they are depends on nothing else, so whoever has the key and the vocabulary finds them.

    bias: delta, 0 to 100; share: gamma, above 0 and below 1; key: 0 and more. polydec.request.detect is the other half.
    Reduces to: the identity at bias 0. Raises RequestError outside the ranges.
    Source: Kirchenbauer et al., "A watermark for large language models", 2023 (soft lists, one token of context; the lists
    themselves are our own stream's, not those of another library).
    """

    bias: float = 2.0
    share: float = 0.25
    key: int = 0
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_annotated_value("watermark_bias", self.bias, Bias)
        check_list(self.share, self.key)

    def start(self, prompt: Sequence[int]) -> int:
        return prompt[-1]

    def step(self, state: int, token: int) -> int:
        return token

    def shape(self, state: int, logw_V: Tensor) -> Tensor:
        return logw_V + self.bias * green_token_mask(self.key, state, self.share, len(logw_V)).to(
            logw_V
        )


@lru_cache(maxsize=256)
def green_token_mask(key: int, before: int, share: float, size: int) -> Tensor:
    """Which of `size` tokens are green behind the token `before` (V, bool)."""
    drawn_V = Rng.of(key).at("watermark", before).noise(size).gumbel_V
    green_V = torch.zeros(size, dtype=torch.bool)
    green_V[drawn_V.topk(green_token_count(share, size)).indices] = True
    return green_V


def green_token_count(share: float, size: int) -> int:
    """How many of `size` tokens are green."""
    return max(1, int(share * size))


def check_list(share: float, key: int) -> None:
    """Raise RequestError for a share or a key that is out of range."""
    convert_annotated_value("watermark_share", share, Share)
    convert_annotated_value("watermark_key", key, Key)


def make_watermark_rule(
    setting: SamplingRuleContext,
    *,
    watermark_bias: Bias = 0.0,
    watermark_share: Share = 0.25,
    watermark_key: Key = 0,
) -> WatermarkRule | None:
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
