"""A drafter whose proposals cost time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class PricedDrafter:
    """The drafter, of which whoever weighs costs is told that a proposal takes `ms` milliseconds beside its own price: a model
    among other drafters, say.

    ms: at least 0, finite.

    Exact: law, under any verifier under which the drafter is.
    Reduces to: the drafter, where nobody weighs costs.
    Source: composition.
    """

    drafter: Drafter
    ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.ms < inf:
            raise RequestError(f"ms is {self.ms}: it must be finite and at least 0")

    def open(self, prompt: Sequence[int], session: Session) -> PricedGuess:
        return PricedGuess(self, self.drafter.open(prompt, session))


@dataclass(frozen=True)
class PricedGuess:
    """The drafter's own guess."""

    config: PricedDrafter
    guess: DraftGuess

    @property
    def price(self) -> float:
        return self.config.ms + self.guess.price

    @property
    def want(self) -> ScoreRequest:
        return self.guess.want

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return await self.guess.propose(root, position, budget, rng)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.guess.learn(draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> PricedGuess:
        return PricedGuess(self.config, self.guess.fork(session, choice))

    def close(self) -> None:
        self.guess.close()
