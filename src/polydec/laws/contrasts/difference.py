"""The one linear rule behind guidance, contrastive decoding and context-aware decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.laws.contrasts._rows import floor_logprobs, mask_implausible_tokens


@dataclass(frozen=True)
class DifferenceContrast:
    """plus l - minus m / temperature, l and m being log-probabilities of the first law and of the
    other, for the tokens that have at least the fraction `head` of the likeliest one's probability
    under the first (0: all).

    plus - minus = 1 keeps the scale of the first law. Classifier-free guidance by g: (g, g - 1);
    context-aware decoding by a: (1 + a, a); contrastive decoding by b: (1, b) as first published,
    (1 + b, b) as reformulated, both with a head of 0.1. plus: 0 to 100; minus: -100 to 100 (below 0
    it adds the other law); head: 0 to 1; temperature: of the other law, above 0.

    Exact: the law is the definition; a pure function of two rows.
    Reduces to: the first law at plus 1 and minus 0, and where both laws are the same and plus -
    minus = 1 (without a head); its likeliest token at head 1. Raises RequestError outside the
    ranges.
    Source: Li et al., "Contrastive decoding", 2022; Shi et al., "Trusting your evidence" (CAD),
    2023; Sanchez et al., "Stay on topic with classifier-free guidance", 2023.
    """

    plus: float = 1.5
    minus: float = 0.5
    head: float = 0.0
    temperature: float = 1.0
    laws: ClassVar[int] = 1
    gated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, low, high in (("plus", 0.0, 100.0), ("minus", -100.0, 100.0), ("head", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise RequestError(
                    f"{name} is {getattr(self, name)}: it must lie in {low:g} to {high:g}"
                )
        if not 0.00001 <= self.temperature <= 1000.0:
            raise RequestError(
                f"temperature of the other law is {self.temperature}: it must lie in 0.00001 to 1000"
            )

    def opens_contrast(self, logp_V: Tensor) -> bool:
        return True

    def mix_laws(self, first_V: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Mix the two laws: plus l - minus m / temperature.

        Args:
            first_V: Log-probabilities of the first law, shape ``[V]``.
            others: Log-probabilities of the other law alone, shape ``[V]``.

        Returns:
            Log-weights of the mixed law, shape ``[V]``.
        """
        # Divided after the floor: the row stays finite.
        other_V = floor_logprobs(others[0]) / self.temperature
        return mask_implausible_tokens(
            self.plus * floor_logprobs(first_V) - self.minus * other_V, first_V, self.head
        )
