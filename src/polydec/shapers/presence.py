"""Presence penalty: a constant off every token that was generated before."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.types import Reads
from polydec.shapers._rows import Ids, add, ids, index


@dataclass(frozen=True)
class Presence:
    """w - penalty for every token of the output (the prompt does not count); a negative penalty rewards.

    Reduces to: the identity at 0. Raises ValueError where the penalty is not finite. Source: OpenAI API reference.
    """
    penalty: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.penalty):
            raise ValueError(f"presence_penalty is {self.penalty}: it must be finite (0 changes nothing)")

    def start(self, prompt: Sequence[int]) -> Ids:
        return ids()

    def step(self, state: Ids, token: int) -> Ids:
        return add(state, token)

    def shape(self, state: Ids, logw_V: Tensor) -> Tensor:
        at, out_V = index(state, logw_V), logw_V.clone()
        out_V[at] = logw_V[at] - self.penalty
        return out_V
