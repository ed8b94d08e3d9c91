"""A drafter whose proposals cost time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from polydec.base.errors import RequestError
from polydec.core.protocols import Session
from polydec.methods.speculative.drafters._delegated_guess import DelegatedGuess
from polydec.methods.speculative.loop.protocols import Drafter


@dataclass(frozen=True)
class PricedDrafter:
    """A drafter with a price, for combinations that weigh costs: a model among other drafters, say.

    Attributes:
        drafter: Any drafter.
        ms: What a proposal takes in addition to the drafter's own price, in milliseconds; at least
            0, finite. Default 0.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter, where nobody weighs costs.
    Source: composition.
    """

    drafter: Drafter
    ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.ms < inf:
            raise RequestError(f"ms is {self.ms}: it must be finite and at least 0")

    def open_guess(self, prompt: Sequence[int], session: Session) -> PricedGuess:
        """Begin a sequence of the drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return PricedGuess(self.drafter.open_guess(prompt, session), self)


@dataclass(frozen=True)
class PricedGuess(DelegatedGuess):
    """The drafter's guess, with the price.

    Attributes:
        guess: The drafter's own guess.
        config: The configuration.
    """

    config: PricedDrafter

    @property
    def price(self) -> float:
        return self.config.ms + self.guess.price
