"""A drafter whose drafts are as wide as pays at the number of sequences that share the target's passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Want
from polydec.drafters._batch_width import BatchWidth, InUse
from polydec.families.ar.protocols import Drafter, Guess
from polydec.families.ar.types import Budget, Verdict


@dataclass(frozen=True)
class ByBatch:
    """Asks `drafter` for no more than `policy` allows at the session's number of peers, and for no more than the budget.

    Exact: law, under a verifier whose text does not depend on what was drafted (`match`).
    Reduces to: `drafter` where the policy's one width is the budget's.
    Source: Scaling Laws for Speculative Decoding (Yan et al., 2025).
    """

    drafter: Drafter
    policy: BatchWidth

    def open(self, prompt: Sequence[int], session: Session) -> ByBatchGuess:
        return ByBatchGuess(self.policy, session, self.drafter.open(prompt, session))


@dataclass
class ByBatchGuess:
    """session: the target's own; inner: who guesses; state: of the policy, None before the first round."""

    policy: BatchWidth
    session: Session
    inner: Guess
    state: InUse | None = None

    @property
    def want(self) -> Want:
        return self.inner.want

    @property
    def price(self) -> float:
        return self.inner.price

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        self.state = self.policy.seen(self.state, self.session.peers)
        now = self.policy.budget(self.state)
        less = replace(
            budget, depth=min(budget.depth, now.depth), nodes=min(budget.nodes, now.nodes)
        )
        if not less.nodes:
            return Draft.chain(root)
        return await self.inner.propose(root, position, less, rng)

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.inner.learn(draft, scores, verdict)

    def fork(self, session: Session, choice: int | None = None) -> ByBatchGuess:
        return ByBatchGuess(self.policy, session, self.inner.fork(session, choice), self.state)

    def close(self) -> None:
        self.inner.close()
