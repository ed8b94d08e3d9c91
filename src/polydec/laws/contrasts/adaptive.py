"""AdaCAD: a contrast as strong as the two laws differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import jensen_shannon_divergence
from polydec.laws.contrasts._rows import floor_logprobs, mask_implausible_tokens


@dataclass(frozen=True)
class AdaptiveContrast:
    """(1 + a) l - a m, where a is the Jensen-Shannon divergence of the two laws at this very token
    (0 to log 2), but at least `floor`.

    floor: 0 to 10 (0.3 in the published runs on summaries); base: of the divergence's logarithm,
    1.01 to 10 (e in the published code, so that a is 0.69 at most; with 2 it is 1 at most, with the
    cube root of 2 it is 3); head: as in `difference`, 0 (off) in the published runs.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law where both laws are the same (without a head). Raises RequestError
    outside the ranges.
    Source: Wang et al., "AdaCAD: adaptively decoding to balance conflicts between contextual and
    parametric knowledge", 2024.
    """

    floor: float = 0.0
    head: float = 0.0
    base: float = math.e
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, low, high in (("floor", 0.0, 10.0), ("head", 0.0, 1.0), ("base", 1.01, 10.0)):
            if not low <= getattr(self, name) <= high:
                raise RequestError(
                    f"{name} is {getattr(self, name)}: it must lie in {low:g} to {high:g}"
                )

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return True

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the two laws by the strength that their divergence gives.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        # alpha: the divergence in the chosen base, at least the floor.
        alpha = max(jensen_shannon_divergence(first_V, others[0]) / math.log(self.base), self.floor)
        # On rows with a floor, so that no difference of infinities arises.
        mixed_V = (1.0 + alpha) * floor_logprobs(first_V) - alpha * floor_logprobs(others[0])
        return mask_implausible_tokens(mixed_V, first_V, self.head)
