"""The target's own layers draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class SelfSpeculativeDrafter:
    """Draws a tree from some of the target's layers, its final norm and head, over the target's own cache.

    layers: ascending indices. The first ones alone are an early exit: what they computed stands, and verification goes on
    behind them, so that every layer runs once for a token that is kept. With others (layer skip), or `without` some of their
    halves (2 i: the attention of layer i, which then caches nothing; 2 i + 1: its MLP), the keys and values behind the first
    gap are wrong for the target, which computes all of its layers anew.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from, shaped as the target's are.
    Reduces to: drafts that are always accepted with all layers, none halved; `nothing` at depth 0.
    Source: Elhoushi et al., LayerSkip (2024), for exits; Zhang et al., "Draft & verify" (2023), for skips.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"learned": "its layers read the target's own cache"}
    tree: TreeGrower
    layers: tuple[int, ...] = (0,)
    without: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise RequestError(
                f"layers is {self.layers}: it must hold ascending indices, at least one"
            )
        if not {h // 2 for h in self.without} <= set(self.layers) or any(
            h ^ 1 in self.without for h in self.without
        ):
            raise RequestError(
                f"without is {sorted(self.without)}: it must hold 2 i (attention) or 2 i + 1 (MLP) of layers i "
                f"in {self.layers}, not both of one"
            )

    def open(self, prompt: Sequence[int], session: Session) -> SelfSpeculativeGuess:
        return SelfSpeculativeGuess(self, session.part(self.layers, self.without))


@dataclass(frozen=True)
class SelfSpeculativeGuess(DraftGuess):
    """session: a part of the decoder's own, which that one commits."""

    config: SelfSpeculativeDrafter
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        if budget.depth < 1:
            return Draft.chain(root)
        return await self.config.tree.grow(self.session, root, position, budget, rng)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        pass

    def fork(self, session: Session, choice: int | None = None) -> SelfSpeculativeGuess:
        return replace(self, session=session.part(self.config.layers, self.config.without))

    def close(self) -> None:
        pass
