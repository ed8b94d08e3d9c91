"""Grow a tree node by node, always where a further child is likeliest to be reached."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._siblings import draw_siblings
from polydec.methods.speculative.trees.greedy_growth import (
    assumed_acceptance_chance,
    check_chances,
    check_width,
    path_tokens,
)


@dataclass(frozen=True)
class BestSlotTree:
    """Fills the place of the largest value (see `greedy_growth`, which draws the same children) until the budget's nodes
    are used up or no place is worth `least`. Up to one pass of the draft for each node: the reference, not the fast way.

    least: 0 to 1; width: most siblings, 1 to 64; floor, fade: 0 to 1.

    Exact: law, under any exact verifier: a child's existence is decided before it is drawn.
    Reduces to: `chain` where the draft is certain of every token, and at floor 1.
    Source: DySpec (Xiong et al., 2024), fixed budget.
    """

    least: float = 0.0
    width: int = 8
    floor: float = 0.0
    fade: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.least <= 1.0:
            raise RequestError(f"least is {self.least}: it must lie in 0 to 1")
        check_width(self.width)
        check_chances(self.floor, self.fade)

    async def grow(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        draft = Draft.chain(root)
        scores = None
        here = rng.at("draft", position)
        open_ = {}
        # Value, depth of the parent, parent.
        places = [(-1.0, 0, 0)] if budget.depth else []
        while places and len(draft) <= budget.nodes:
            value, depth, node = heappop(places)
            if node not in open_:
                scores = await laws.score(draft, ScoreRequest(base=RowDetail.ROW))
                open_[node] = draw_siblings(
                    scores, node, here.at(*path_tokens(draft, node)), self.width
                )
            child = next(open_[node], None)
            if child is None:
                continue
            if budget.graded or child.law is not None:
                q = child.q
            else:
                q = 1.0
            on = depth + 1 < budget.depth and budget.go_on(depth + 1, q)
            a = assumed_acceptance_chance(
                self.floor, self.fade, child.share, len(draft.children[node])
            )
            sibling = value * (1.0 - a)
            first = value * a
            if sibling < 0.0 and -sibling >= self.least:
                heappush(places, (sibling, depth, node))
            if on and first < 0.0 and -first >= self.least:
                heappush(places, (first, depth + 1, len(draft)))
            draft = draft.grown(child.token, node, child.draw, child.law, child.q)
        return draft
