"""A tree of a fixed shape, drawn with the noise that the target will use."""
from __future__ import annotations

from dataclasses import dataclass

from polydec.core.protocols import Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Draw
from polydec.models.draws import sure
from polydec.trees._line import wanted
from polydec.trees.static import check_levels


@dataclass(frozen=True)
class CoupledStatic:
    """Every node of level d has the `levels[d]` tokens that come first in its row plus the noise of their position.

    The first k of noise plus log-probabilities are k draws without replacement, likeliest winner first.
    levels: 1 to 16 counts of 1 to 16. The budget bounds depth and nodes; go_on is asked of every node.

    Exact: law, under the `coupled` verifier only, which reads no draft law.
    Reduces to: `coupled_chain` where every count is 1.
    Source: Daliri, Musco, Suresh (2024) for one candidate; Kool et al., "Stochastic beams" (2019), for several.
    """
    levels: tuple[int, ...] = (2, 1, 1)

    def __post_init__(self) -> None:
        check_levels(self.levels)

    async def grow(self, session: Session, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        draft, tips = Draft.chain(root), [0]
        for depth, width in enumerate(self.levels[:budget.depth], 1):
            if not tips or len(draft) > budget.nodes:
                break
            scores = await session.score(draft, wanted(budget))
            noise, below = None, list[int]()
            for node in tips:
                only, room = scores.certain(node), budget.nodes + 1 - len(draft)
                if only is not None:
                    law_V, tokens, draw = None, (only,), Draw.CERTAIN
                else:
                    law_V, draw = scores.row(node), Draw.WITHOUT
                    noise = noise or rng.at("token", position + depth - 1).noise(len(law_V))
                    tokens = noise.topk(law_V, width)
                for token in tokens[:max(room, 0)]:
                    p = sure(scores, node, token, budget.graded) if law_V is None else float(law_V[token].exp())
                    if budget.go_on(depth, p):
                        below.append(len(draft))
                    draft = draft.grown(token, node, draw, law_V, p)
            tips = below
        return draft
