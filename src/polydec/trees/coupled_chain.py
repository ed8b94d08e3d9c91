"""One path, drawn with the noise that the target will use."""
from __future__ import annotations

from dataclasses import dataclass

from polydec.core.protocols import Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Draw
from polydec.trees._grade import sure, wanted


@dataclass(frozen=True)
class CoupledChain:
    """Each token is the argmax of the draft's row plus the noise of its position, rng.at("token", position): the
    `coupled` verifier then draws the same token wherever the two laws are close.

    Exact: law, under the `coupled` verifier only, which reads no draft law.
    Reduces to: a greedy draft under a greedy target.
    Source: Daliri, Musco, Suresh (2024).
    """
    async def grow(self, session: Session, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        draft = Draft.chain(root)
        for depth in range(1, min(budget.depth, budget.nodes) + 1):
            scores = await session.score(draft, wanted(budget))
            token, law_V, draw = scores.certain(depth - 1), None, Draw.CERTAIN
            if token is not None:
                p = sure(scores, depth - 1, token, budget)
            else:
                law_V, draw = scores.row(depth - 1), Draw.INDEPENDENT
                token = rng.at("token", position + depth - 1).noise(len(law_V)).argmax(law_V)
                p = float(law_V[token].exp())
            draft = draft.grown(token, depth - 1, draw, law_V, p)
            if not budget.go_on(depth, p):
                break
        return draft
