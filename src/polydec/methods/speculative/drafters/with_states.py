"""A drafter whose proposals are judged by the target's states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


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
class WithStatesGuess:
    """The drafter's own guess, which wants hidden states too."""

    guess: DraftGuess

    @property
    def price(self) -> float:
        return self.guess.price

    @property
    def want(self) -> ScoreRequest:
        return replace(self.guess.want, hidden=True)

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

    def fork_guess(self, session: Session, choice: int | None = None) -> WithStatesGuess:
        """Fork the drafter's guess.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return WithStatesGuess(self.guess.fork_guess(session, choice))

    def close(self) -> None:
        self.guess.close()
