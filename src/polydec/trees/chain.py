"""One path, drawn token by token."""
from __future__ import annotations

from dataclasses import dataclass

from polydec.core.law import probs
from polydec.core.protocols import Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Draw
from polydec.trees._grade import sure, wanted


@dataclass(frozen=True)
class Chain:
    """Draw each token from the draft's law after the ones before it, down to the budget's depth or until its go_on says
    stop (the token that said so is kept). A greedy draft's token is proposed with certainty, unread.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: no draft at depth 0.
    Source: Leviathan et al. (2023); Chen et al. (2023).
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
                p_V = probs(law_V)
                token = rng.at("draft", position, depth).categorical(p_V)
                p = float(p_V[token])
            draft = draft.grown(token, depth - 1, draw, law_V, p)
            if not budget.go_on(depth, p):
                break
        return draft
