"""Min-p: tokens at least a fraction as likely as the likeliest."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.types import Reads
from polydec.shapers._rows import at_least


@dataclass(frozen=True)
class MinP:
    """Keep a token where its probability is at least `p` times that of the likeliest, 0 <= p <= 1.

    Reduces to: the identity at 0; at 1 the likeliest token and its equals stay. Raises ValueError outside the range.
    Source: Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs", 2024.
    """
    p: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"min_p is {self.p}: it must lie in 0 to 1 (0 keeps every token)")

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        if self.p == 0.0:
            return logw_V
        return at_least(logw_V, logw_V.max() + math.log(self.p))
