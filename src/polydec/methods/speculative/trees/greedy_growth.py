"""Grow a tree level by level, wherever a further child is likely enough to be reached."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer, DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._siblings import draw_siblings


@dataclass(frozen=True)
class GreedyGrowthTree:
    """Grow a tree level by level, wherever a further child is likely enough to be reached.

    A place for a child has a value: the chance that verification tries it, if a drafted token that
    has share s of what r earlier siblings left of the draft's law is accepted with chance a =
    (floor + (1 - floor) s) fade^r. The root's first place is worth 1; a child drawn in a place of
    value v has a first place worth v a below it, and its next sibling one worth v (1 - a). Places
    worth less than the threshold stay empty. One pass of the draft a level; where the budget's
    nodes run short, the level's best places are filled first. Whether a child is drawn is decided
    before it is drawn.

    Floor 0 and fade 1, as published, hold a token of small probability for as good as lost, and
    later siblings for as good as first ones. Yet where target and draft are both unsure they may
    agree, and what a rejection leaves of the target's law is what the draft does not foresee:
    fitted to what is accepted, trees are deeper and narrower. Below a draw where the budget's go_on
    says stop nothing is drawn. A greedy draft gives certain children, the likeliest first, and
    counts their probabilities before shaping.

    Attributes:
        threshold: Least value of a place that is filled, above 0, at most 1; about 1 / nodes uses a
            budget up. Default 0.1.
        width: Most siblings, 1 to 64. Default 8.
        floor: Chance that any child is accepted, however unlikely it is under the draft, 0 to 1.
            Default 0.
        fade: Factor of that chance for each earlier sibling, 0 to 1. Default 1.

    Exact: law, under any exact verifier: a child's existence depends on its ancestors, on the
    siblings before it and on other branches, never on itself.
    Reduces to: `chain` where the draft is certain of every token, and at floor 1; one level of
    siblings at depth 1.
    Source: DySpec (Xiong et al., 2024), threshold variant.
    """

    threshold: float = 0.1
    width: int = 8
    floor: float = 0.0
    fade: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise RequestError(f"threshold is {self.threshold}: it must be above 0 and at most 1")
        check_width(self.width)
        check_chances(self.floor, self.fade)

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Grow the tree with one pass of the draft a level.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Children are drawn at
                ``rng.child_stream("draft", position, *path)``.

        Returns:
            The tree.
        """
        # `tips` are the nodes of the last level that may have children, each with the value of its
        # first place.
        draft = Draft.chain_draft(root)
        tips = [(1.0, 0)]
        for depth in range(1, budget.depth + 1):
            if not tips or len(draft) > budget.nodes:
                break
            scores = await laws.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
            draft, tips = self._level(
                draft, tips, scores, depth, budget, rng.child_stream("draft", position)
            )
        return draft

    def _level(
        self,
        draft: Draft,
        tips: list[tuple[float, int]],
        scores: DraftScores,
        depth: int,
        budget: DraftBudget,
        rng: Rng,
    ) -> tuple[Draft, list[tuple[float, int]]]:
        # A heap of places, each with its node, the rank of the child in it, and the iterator of the
        # node's children. A node has one open place at a time, so equal values never compare
        # iterators.
        places = [
            (
                -value,
                node,
                0,
                draw_siblings(
                    scores, node, rng.child_stream(*path_tokens(draft, node)), self.width
                ),
            )
            # Ties go to the node that was added first, so that a tree does not depend on the order
            # of a set.
            for value, node in sorted(tips, key=lambda tip: (-tip[0], tip[1]))
        ]
        kept: list[tuple[float, int]] = []
        while places and len(draft) <= budget.nodes:
            value, node, rank, more = heappop(places)
            # Siblings are drawn one at a time: a parent that never comes up again draws no more.
            child = next(more, None)
            if child is None:
                continue
            # Values are negative here, for a heap that gives the smallest first.
            a = assumed_acceptance_chance(self.floor, self.fade, child.share, rank)
            if budget.graded or child.law is not None:
                q = child.q
            else:
                q = 1.0
            # The child's own first place belongs to the next level; the next sibling's place
            # competes on this one.
            if -value * a >= self.threshold and budget.go_on(depth, q):
                kept.append((-value * a, len(draft)))
            if -value * (1.0 - a) >= self.threshold:
                heappush(places, (value * (1.0 - a), node, rank + 1, more))
            draft = draft.with_node(child.token, node, child.draw, child.law, child.q)
        return draft, kept


def path_tokens(draft: Draft, node: int) -> tuple[int, ...]:
    """The tokens on the path to a node.

    They name the draws of the node's children, in whatever order a tree is built.

    Args:
        draft: A token tree.
        node: Index of the node.

    Returns:
        Token ids from the first one below the root down to the node.
    """
    return tuple(draft.token[i] for i in draft.path_to(node))


def assumed_acceptance_chance(floor: float, fade: float, share: float, rank: int) -> float:
    """The chance with which a child is taken to be accepted: (floor + (1 - floor) share) fade^rank.

    Args:
        floor: Chance of a token that has no share at all, 0 to 1.
        fade: Factor for each earlier sibling, 0 to 1.
        share: The child's probability among what the earlier siblings left of the draft's law, 0 to
            1.
        rank: How many siblings stand before it.

    Returns:
        The chance, 0 to 1.
    """
    return (floor + (1.0 - floor) * share) * fade**rank


def check_chances(floor: float, fade: float) -> None:
    """Check two options of a tree.

    Args:
        floor: Must lie in 0 to 1.
        fade: Must lie in 0 to 1.

    Raises:
        RequestError: One of them does not.
    """
    for name, value in (("floor", floor), ("fade", fade)):
        if not 0.0 <= value <= 1.0:
            raise RequestError(f"{name} is {value}: it must lie in 0 to 1")


def check_width(width: int) -> None:
    """Raise RequestError unless a node may have 1 to 64 children."""
    if not 1 <= width <= 64:
        raise RequestError(f"width is {width}: it must lie in 1 to 64")
