"""A product: what both laws find likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.laws.contrasts._rows import floor_logprobs


@dataclass(frozen=True)
class ProductContrast:
    """(1 - share) log p + share log q, p being the first law and q the other; of tokens that p
    rules out nothing is taken.

    share: 0 to 1, how much the other law counts.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law at share 0, the other one at 1 (where the first rules nothing out).
    Raises RequestError outside the range.
    Source: logarithmic opinion pools, Hinton's product of experts (1999); over bytes, the shallow
    fusion of Hsu et al., "Let's fuse step by step: a generative fusion decoding algorithm with LLMs
    for ASR and OCR" (2024), normalised at every byte.
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
        """Mix the two laws: (1 - share) log p + share log q.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        # At share 0 the first law stays as it is, without the floor.
        if not self.share:
            return first_V
        # A weighted sum of logarithms: the weighted geometric mean of the laws.
        both_V = (1.0 - self.share) * floor_logprobs(first_V) + self.share * floor_logprobs(
            others[0]
        )
        return torch.where(first_V > NEG_INF, both_V, NEG_INF)
