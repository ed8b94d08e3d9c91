"""The roles of draft and verify. A method implements one of these; nothing in the package asks which class it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

from polydec.core.protocols import DraftScorer, DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

P = TypeVar("P")


class DraftGuess(Protocol):
    """A drafter at work on one sequence."""

    @property
    def want(self) -> ScoreRequest:
        """What it needs to see of each score; `law` is ignored. With want.prompt, `learn` is called once before the
        first proposal with the prompt as an accepted chain; with want.last, with its last token before the root alone (or
        with all of them, where somebody else wants these), and a cached prefix is not computed again."""
        ...

    @property
    def price(self) -> float:
        """Milliseconds that one proposal takes, whatever comes of it; 0.0 where that is not worth counting, which a guess has
        from here if it derives from this class. Who holds drafters adds theirs up. What a draft model takes for each token is
        `PassCosts.draft_ms`, which is counted by the token."""
        return 0.0

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """A draft below `root`; `position` is that of the first drafted token. Own draws are made at
        rng.at("draft", position, ...)."""
        ...

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """The one place where a drafter sees the truth."""
        ...

    def fork(self, session: Session, choice: int | None = None) -> DraftGuess:
        """One of its own that knows the same. session: the twin of the target's session, which was forked just before;
        choice: it drafts for this choice of the request (see Session.fork)."""
        ...

    def close(self) -> None: ...


class Drafter(Protocol):
    """Who guesses. `session` is the target's own, for drafters that read its hidden states or run its first layers."""

    def open(self, prompt: Sequence[int], session: Session) -> DraftGuess: ...


class TreeGrower(Protocol):
    """Which nodes are drawn, for drafters that have a law at any node."""

    async def grow(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft: ...


class Verifier(Protocol):
    """Accepts a path. A pure function of laws; a position's draws are made at rng.at("token", position, ...)."""

    exactness: ClassVar[Exactness]

    def verify(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict: ...


class Policy(Protocol[P]):
    """How much to guess next, from what was accepted; never from the clock. One that asks how many sequences share a round has
    `joined(state, sequences) -> state` as well, which is called before each (methods/speculative/policies/batch_width.py)."""

    def start(self) -> P: ...
    def budget(self, state: P) -> DraftBudget: ...
    def observe(self, state: P, draft: Draft, verdict: Verdict) -> P: ...
