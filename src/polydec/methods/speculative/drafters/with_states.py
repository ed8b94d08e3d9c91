"""A drafter whose proposals are judged by the target's states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.core.protocols import Session
from polydec.core.types import ScoreRequest
from polydec.methods.speculative.drafters._delegated_guess import DelegatedGuess
from polydec.methods.speculative.loop.protocols import Drafter


@dataclass(frozen=True)
class WithStatesDrafter:
    """A drafter that has the target's states of every pass requested.

    A verifier reads them.

    Attributes:
        drafter: Any drafter.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter.
    Source: composition.
    """

    drafter: Drafter

    def open_guess(self, prompt: Sequence[int], session: Session) -> WithStatesGuess:
        """Begin a sequence of the drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return WithStatesGuess(self.drafter.open_guess(prompt, session))


@dataclass(frozen=True)
class WithStatesGuess(DelegatedGuess):
    """The drafter's own guess, which wants hidden states too."""

    @property
    def want(self) -> ScoreRequest:
        return replace(self.guess.want, hidden=True)
