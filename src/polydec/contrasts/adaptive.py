"""AdaCAD: a contrast as strong as the two laws differ."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.contrasts._rows import floored, within
from polydec.core.law import divergence


@dataclass(frozen=True)
class Adaptive:
    """(1 + a) l - a m, where a is the Jensen-Shannon divergence (nats, 0 to log 2) of the two laws at this very token, but at
    least `floor`.

    floor: 0 to 10 (0.3 in the published runs on summaries); head: as in `difference`, 0 (off) in the published runs.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law where both laws are the same (without a head). Raises ValueError outside the ranges.
    Source: Wang et al., "AdaCAD: adaptively decoding to balance conflicts between contextual and parametric knowledge", 2024.
    """
    floor: float = 0.0
    head: float = 0.0
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, high in (("floor", 10.0), ("head", 1.0)):
            if not 0.0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}: it must lie in 0 to {high:g}")

    def opens(self, logp_V: Tensor) -> bool:
        return True

    def mix(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        alpha = max(divergence(first_V, others[0]), self.floor)
        mixed_V = (1.0 + alpha) * floored(first_V) - alpha * floored(others[0])
        return within(mixed_V, first_V, self.head)
