"""A guess that hands everything on to another one: the base of those that change one thing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class DelegatedGuess:
    """The guess of another drafter.

    Attributes:
        guess: That drafter's own guess.
    """

    guess: DraftGuess

    @property
    def price(self) -> float:
        return self.guess.price

    @property
    def want(self) -> ScoreRequest:
        return self.guess.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Let the drafter propose.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            Its draft.
        """
        return await self.guess.propose_draft(root, position, budget, rng)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Let the drafter learn.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.guess.learn_round(draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> Self:
        """Fork the drafter's guess.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return replace(self, guess=self.guess.fork_guess(session, choice))

    def close(self) -> None:
        self.guess.close()
