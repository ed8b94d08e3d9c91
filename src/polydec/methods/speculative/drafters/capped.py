"""A drafter with a budget of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class CappedDrafter:
    """The drafter, with at most `depth` levels whatever the budget allows: for one that stands beside others.

    depth: 0 to 64.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter, where the budget is the smaller one.
    Source: composition.
    """

    drafter: Drafter
    depth: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 64:
            raise RequestError(f"depth is {self.depth}: it must lie in 0 to 64")

    def open(self, prompt: Sequence[int], session: Session) -> CappedGuess:
        return CappedGuess(self, self.drafter.open(prompt, session))


@dataclass(frozen=True)
class CappedGuess:
    """The drafter's own guess."""

    config: CappedDrafter
    guess: DraftGuess

    @property
    def price(self) -> float:
        return self.guess.price

    @property
    def want(self) -> ScoreRequest:
        return self.guess.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return await self.guess.propose(
            root, position, replace(budget, depth=min(budget.depth, self.config.depth)), rng
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.guess.learn(draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> CappedGuess:
        return CappedGuess(self.config, self.guess.fork(session, choice))

    def close(self) -> None:
        self.guess.close()
