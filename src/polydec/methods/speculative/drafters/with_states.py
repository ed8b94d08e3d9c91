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
    """The drafter, and the states of every pass are asked for: a verifier reads them.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter.
    Source: composition.
    """

    drafter: Drafter

    def open(self, prompt: Sequence[int], session: Session) -> WithStatesGuess:
        return WithStatesGuess(self.drafter.open(prompt, session))


@dataclass(frozen=True)
class WithStatesGuess:
    """The drafter's own guess."""

    guess: DraftGuess

    @property
    def price(self) -> float:
        return self.guess.price

    @property
    def want(self) -> ScoreRequest:
        return replace(self.guess.want, hidden=True)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return await self.guess.propose(root, position, budget, rng)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.guess.learn(draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> WithStatesGuess:
        return WithStatesGuess(self.guess.fork(session, choice))

    def close(self) -> None:
        self.guess.close()
