"""Temperature: sharper below one, flatter above."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.types import Reads


@dataclass(frozen=True)
class Temperature:
    """w / temperature, temperature > 0 and finite (for 0 take Greedy).

    Reduces to: the identity at 1, Greedy in the limit of 0. Raises ValueError outside the range.
    Source: Ackley, Hinton and Sejnowski, "A learning algorithm for Boltzmann machines", 1985.
    """
    temperature: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: it must be above 0 and finite (Greedy is the limit of 0)")

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        return logw_V / self.temperature
