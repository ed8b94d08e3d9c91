"""Logit bias: a constant added to some tokens."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.types import Reads
from polydec.shapers._rows import ids, index


@dataclass(frozen=True)
class LogitBias:
    """w + b for the given tokens: {id: b} or pairs (id, b), b finite.

    Reduces to: the identity where all b are 0. Raises ValueError for a bias that is not finite, or a negative id.
    Source: OpenAI API reference.
    """
    bias: tuple[tuple[int, float], ...]
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __init__(self, bias: Mapping[int, float] | Sequence[tuple[int, float]]) -> None:
        pairs = dict(bias)
        for token, b in pairs.items():
            if token < 0:
                raise ValueError(f"logit_bias has token {token}: ids are at least 0")
            if not math.isfinite(b):
                raise ValueError(f"logit_bias of token {token} is {b}: it must be finite (ban a token to remove it)")
        object.__setattr__(self, "bias", tuple(sorted(pairs.items())))

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        at, out_V = index(ids([x for x, _ in self.bias]), logw_V), logw_V.clone()
        out_V[at] += torch.tensor([b for _, b in self.bias], dtype=logw_V.dtype, device=logw_V.device)
        return out_V
