"""A draft model whose neighbouring attentions read the same input while it drafts, and which reads anew what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import PolydecError, RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class GroupedDrafter:
    """Draws a tree from `draft` in groups: of all its layers but the first and the last, `together` consecutive attentions (1
    to 64) read what enters the first of them, so that as many devices could compute them at once.

    calibrated: what it drafted in groups is dropped, and one exact pass over the accepted tokens and the new root writes its
    keys and values; the last row of that pass is the exact law of the first drafted token. Else (for measurement) keys and
    values of accepted tokens stay as groups left them.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: `ModelDrafter` at together 1.
    Source: EasySpec (Wu et al., 2025).
    """

    draft: Target
    tree: TreeGrower
    together: int = 4
    calibrated: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.together <= 64:
            raise RequestError(f"together is {self.together}: it must lie in 1 to 64")

    def open(self, prompt: Sequence[int], session: Session) -> GroupedGuess:
        """Raises RequestError where the draft's layers cannot read together."""
        guess = GroupedGuess(self, self.draft.open(prompt))
        try:
            _ = guess.fuzzy
        except PolydecError:
            guess.close()
            raise
        return guess


@dataclass(frozen=True)
class GroupedGuess(DraftGuess):
    """session: the draft's own, exact, kept in step with what is committed."""

    config: GroupedDrafter
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    @property
    def fuzzy(self) -> Session:
        """The same with layers in groups."""
        return self.session.part(range(self.config.draft.layers), together=self.config.together)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        if budget.depth < 1:
            return Draft.chain(root)
        # In chunks; nothing is left to feed from the second time on.
        await self.session.prefill(ScoreRequest(law=RowDetail.NOTHING))
        return await self.config.tree.grow(self.laws, root, position, budget, rng)

    @property
    def laws(self) -> GroupedLaws:
        return GroupedLaws(self.session, self.fuzzy, self.config.calibrated)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        (self.session if self.config.calibrated else self.fuzzy).commit(verdict.committed(draft))

    def fork(self, session: Session, choice: int | None = None) -> GroupedGuess:
        return GroupedGuess(self.config, self.session.fork(choice))

    def close(self) -> None:
        self.session.close()


@dataclass(frozen=True)
class GroupedLaws:
    """The draft's laws while a tree grows: exact at the root, where calibrated, and of groups below it."""

    exact: Session
    fuzzy: Session
    calibrated: bool

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        return await (self.exact if self.calibrated and len(draft) == 1 else self.fuzzy).score(
            draft, want
        )
