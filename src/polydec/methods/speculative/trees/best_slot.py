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
    """Grow a tree node by node, always where a further child is likeliest to be reached.

    It fills the place of the largest value (see `greedy_growth`, which draws the same children)
    until the budget's nodes are used up or no place is worth `least`. It takes up to one pass of
    the draft for each node: the reference, not the fast way.

    Attributes:
        least: Value below which a place stays empty, 0 to 1. Default 0.
        width: Most siblings, 1 to 64. Default 8.
        floor: Chance that any child is accepted, however unlikely it is under the draft, 0 to 1.
            Default 0.
        fade: Factor of that chance for each earlier sibling, 0 to 1. Default 1.

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

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Grow the tree, best place first.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Children are drawn at
                ``rng.child_stream("draft", position, *path)``, so that their order does not matter.

        Returns:
            The tree.
        """
        draft = Draft.chain_draft(root)
        scores = None
        here = rng.child_stream("draft", position)
        open_ = {}
        # A heap of places: negative value, depth of the parent, the parent itself.
        places = [(-1.0, 0, 0)] if budget.depth else []
        while places and len(draft) <= budget.nodes:
            value, depth, node = heappop(places)
            # The first child of a node needs the draft's row there; its siblings are drawn from the
            # same iterator.
            if node not in open_:
                scores = await laws.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
                open_[node] = draw_siblings(
                    scores, node, here.child_stream(*path_tokens(draft, node)), self.width
                )
            child = next(open_[node], None)
            if child is None:
                continue
            if budget.graded or child.law is not None:
                q = child.q
            else:
                q = 1.0
            on = depth + 1 < budget.depth and budget.go_on(depth + 1, q)
            # A child in a place of value v is tried with chance v. Below it a place is worth v a,
            # and its next sibling is tried only if it is rejected: v (1 - a).
            a = assumed_acceptance_chance(
                self.floor, self.fade, child.share, len(draft.children[node])
            )
            sibling = value * (1.0 - a)
            first = value * a
            if sibling < 0.0 and -sibling >= self.least:
                heappush(places, (sibling, depth, node))
            if on and first < 0.0 and -first >= self.least:
                heappush(places, (first, depth + 1, len(draft)))
            draft = draft.with_node(child.token, node, child.draw, child.law, child.q)
        return draft
