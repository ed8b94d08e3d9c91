"""A mixture: a coin decides which law a token is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF


@dataclass(frozen=True)
class MixtureContrast:
    """log((1 - share) p + share q), p being the first law and q the other; of tokens that p rules
    out nothing is taken.

    share: 0 to 1, what the other law contributes.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law at share 0, the other one at 1 (where the first rules nothing out).
    Raises RequestError outside the range.
    Source: the linear interpolation of language models, Jelinek and Mercer, 1980.
    """

    share: float = 0.5
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise RequestError(f"share is {self.share}: it must lie in 0 to 1")

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return True

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the two laws: log((1 - share) p + share q).

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        # log 0 = -inf leaves a law out of the sum.
        log_first, log_other = (
            math.log(x) if x else NEG_INF for x in (1.0 - self.share, self.share)
        )
        mixed_V = torch.logaddexp(first_V + log_first, others[0] + log_other)
        # What the first law rules out stays out. At share 1 nothing may be left: then the first law
        # stands.
        mixed_V = torch.where(first_V > NEG_INF, mixed_V, NEG_INF)
        if float(mixed_V.max()) > NEG_INF:
            return mixed_V
        return first_V
