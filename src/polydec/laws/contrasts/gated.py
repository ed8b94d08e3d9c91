"""USCD: a contrast only where the first law is unsure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import float64_probabilities


@dataclass(frozen=True)
class GatedContrast:
    """What `rule` makes where the first law is unsure, and the first law elsewhere. It is unsure
    where sureness(p) = sqrt((V sum p^2 - 1) / (V - 1)) lies below the threshold: 1 for one token of
    probability 1, 0 for the uniform law; the standard deviation of p, freed of the vocabulary's
    size.

    rule: a contrast of two laws; threshold: 0 (never unsure) to 2 (always, above 1).

    Exact: the law is the definition; a pure function of the rows.
    Reduces to: the first law at threshold 0, `rule` at a threshold above 1. Raises RequestError
    outside the range.
    Source: Wang et al., "Improving code generation of LLMs by uncertainty-aware selective
    contrastive decoding" (USCD), 2024, which speaks of the uncertainty of the prediction; this
    measure of it and the threshold are our choice.
    """

    rule: Any
    threshold: float = 0.8
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rule.laws != self.laws:
            raise RequestError(
                f"rule is {type(self.rule).__name__}: a gate stands before a contrast of two laws"
            )
        if not 0.0 <= self.threshold <= 2.0:
            raise RequestError(f"threshold is {self.threshold}: it must lie in 0 to 2")

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return law_certainty(logp_V) < self.threshold

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the laws by the inner rule; the caller asks `opens_contrast` first.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        return self.rule.mix_laws(first_V, others)


def law_certainty(logp_V: Tensor) -> float:
    """0 (all tokens are alike) to 1 (only one is possible)."""
    size = len(logp_V)
    # The only token is certain; the formula would divide by 0.
    if size == 1:
        return 1.0
    # sqrt((V sum p^2 - 1) / (V - 1)): 0 for the uniform law, 1 for a single token.
    return math.sqrt(
        max(0.0, size * float(float64_probabilities(logp_V).square().sum()) - 1.0) / (size - 1)
    )
