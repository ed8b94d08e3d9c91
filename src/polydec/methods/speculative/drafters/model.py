"""A second, cheaper law drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


def required_draft(draft: Target | None, asked: str) -> Target:
    """The draft model that an option asks for (`asked`: which one, and its value). Raises RequestError where there is none."""
    if draft is None:
        raise RequestError(
            f"{asked}: there is no draft model, so name one (--draft) or leave it out"
        )
    return draft


@dataclass(frozen=True)
class ModelDrafter:
    """Draws a tree from `draft`, a target of the same vocabulary, shaped as one likes: what it is decides how much is
    accepted, never what is said. last: how many tokens of the prompt the draft reads, at least 1; None: all.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0.
    Source: Leviathan et al. (2023); Chen et al. (2023).
    """

    draft: Target
    tree: TreeGrower
    last: int | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise RequestError(f"last is {self.last}: it must be at least 1")

    def open(self, prompt: Sequence[int], session: Session) -> ModelGuess:
        return ModelGuess(
            self.tree, self.draft.open(prompt if self.last is None else prompt[-self.last :])
        )


@dataclass(frozen=True)
class ModelGuess(DraftGuess):
    """The draft's own session, kept in step with what is committed."""

    tree: TreeGrower
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        if budget.depth < 1:
            return Draft.chain(root)
        # In chunks; nothing is left to feed from the second time on.
        await self.session.prefill(ScoreRequest(law=RowDetail.NOTHING))
        return await self.tree.grow(self.session, root, position, budget, rng)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.session.commit(verdict.committed(draft))

    def fork(self, session: Session, choice: int | None = None) -> ModelGuess:
        return ModelGuess(self.tree, self.session.fork(choice))

    def close(self) -> None:
        self.session.close()
