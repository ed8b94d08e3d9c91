"""A tree of a shape that was fixed beforehand."""
from __future__ import annotations

from dataclasses import dataclass

from polydec.core.law import probs
from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Draw
from polydec.models.draws import sure
from polydec.trees._line import wanted


@dataclass(frozen=True)
class Static:
    """Every node of level d has `levels[d]` children, drawn from the draft's law at that node.

    levels: 1 to 16 counts of 1 to 16; replace: siblings are drawn independently, else without replacement. The budget
    bounds depth and nodes; below a draw where go_on says stop nothing is drawn. A greedy draft gives one certain child.

    Exact: law, under any exact verifier: a child's existence depends on its ancestors and on counts alone.
    Reduces to: `chain` where every count is 1.
    Source: SpecInfer (Miao et al., 2023), independent; recursive speculative decoding (Jeon et al., 2024), without
    replacement.
    """
    levels: tuple[int, ...] = (2, 1, 1)
    replace: bool = False

    def __post_init__(self) -> None:
        check_levels(self.levels)

    async def grow(self, session: Session, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        draft, tips = Draft.chain(root), [0]
        for depth, width in enumerate(self.levels[:budget.depth], 1):
            if not tips or len(draft) > budget.nodes:
                break
            scores = await session.score(draft, wanted(budget))
            draft, tips = self._level(draft, tips, scores, width, depth, budget, rng.at("draft", position))
        return draft

    def _level(self, draft: Draft, tips: list[int], scores: Scores, width: int, depth: int, budget: Budget,
               rng: Rng) -> tuple[Draft, list[int]]:
        below: list[int] = []
        for node in tips:
            only, room = scores.certain(node), budget.nodes + 1 - len(draft)
            if only is not None:
                law_V, p_V, tokens, draw = None, None, (only,), Draw.CERTAIN
            else:
                law_V = scores.row(node)
                p_V, k, here = probs(law_V), min(width, max(room, 0)), rng.at(node)
                if self.replace:
                    tokens, draw = tuple(here.at(i).categorical(p_V) for i in range(k)), Draw.INDEPENDENT
                else:
                    tokens, draw = here.without_replacement(p_V, k), Draw.WITHOUT
            for token in tokens[:max(room, 0)]:
                p = sure(scores, node, token, budget.graded) if p_V is None else float(p_V[token])
                if budget.go_on(depth, p):
                    below.append(len(draft))
                draft = draft.grown(token, node, draw, law_V, p)
        return draft, below


def check_levels(levels: tuple[int, ...]) -> None:
    """Raise ValueError unless there are 1 to 16 counts, each of 1 to 16."""
    if not 1 <= len(levels) <= 16 or not all(1 <= k <= 16 for k in levels):
        raise ValueError(f"levels is {','.join(map(str, levels))}: it must be 1 to 16 child counts of 1 to 16 each, "
                         "such as 2,1,1")
