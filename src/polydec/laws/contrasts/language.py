"""Guidance from a language model: another model says what is well written, the contrast what is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.laws.contrasts._rows import floor_logprobs, mask_implausible_tokens


@dataclass(frozen=True)
class LanguageModelContrast:
    """share * log q + scale * (l - m): l with the condition, m without it, q of a language model
    that sees the text alone.

    scale: gamma, 0 to 100; share: a, 0 to 100 (1 is our choice); head: as in `difference`, of the
    first law.

    Exact: the law is the definition; a pure function of three rows.
    Reduces to: classifier-free guidance by `scale` where q is m and share is 1; the first law at
    scale 1 there. Raises RequestError outside the ranges.
    Source: Kornblith et al., "Guiding image captioning models toward more specific captions", 2023.
    """

    scale: float = 1.5
    share: float = 1.0
    head: float = 0.0
    laws: ClassVar[int] = 2
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, high in (("scale", 100.0), ("share", 100.0), ("head", 1.0)):
            if not 0.0 <= getattr(self, name) <= high:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in 0 to {high:g}")

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return True

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the three laws: share log q + scale (l - m).

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the law without the condition (m) and of the language model
                (q), each of shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        # In the order of the targets: the law without the condition, then the language model.
        without_V, language_V = map(floor_logprobs, others)
        return mask_implausible_tokens(
            self.share * language_V + self.scale * (floor_logprobs(first_V) - without_V),
            first_V,
            self.head,
        )
