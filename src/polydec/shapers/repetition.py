"""Repetition penalty: tokens that stand in the text get less likely."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.types import Reads
from polydec.shapers._rows import Ids, add, ids, index


@dataclass(frozen=True)
class Repetition:
    """z / penalty where z > 0, z * penalty elsewhere, for every token of prompt and output (EOS too); penalty > 0, below 1
    it rewards. Defined on logits: it looks at their sign, so it belongs before anything that normalises; after a target
    that makes its own law it acts on that law's log-weights.

    Reduces to: the identity at 1. Raises ValueError outside the range.
    Source: Keskar et al., "CTRL: a conditional transformer language model for controllable generation", 2019.
    """
    penalty: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 < self.penalty < math.inf:
            raise ValueError(f"repetition_penalty is {self.penalty}: it must be above 0 and finite (1 changes nothing)")

    def start(self, prompt: Sequence[int]) -> Ids:
        return ids(prompt)

    def step(self, state: Ids, token: int) -> Ids:
        return add(state, token)

    def shape(self, state: Ids, logw_V: Tensor) -> Tensor:
        at, out_V = index(state, logw_V), logw_V.clone()
        z = logw_V[at]
        out_V[at] = torch.where(z > 0, z / self.penalty, z * self.penalty)
        return out_V
