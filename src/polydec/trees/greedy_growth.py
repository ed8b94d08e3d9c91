"""Grow a tree level by level, wherever a further child is likely enough to be reached."""
from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Budget, Draft, Reads, Want
from polydec.trees._siblings import siblings


@dataclass(frozen=True)
class GreedyGrowth:
    """A place for a child has a value: the chance that verification tries it, if a drafted token that has share s of what
    its siblings left of the draft's law is accepted with chance a = s ** power. The root's first place is worth 1; a child
    drawn in a place of value v has a first place worth v a below it, and its next sibling one worth v (1 - a). Places
    worth less than the threshold stay empty. One pass of the draft a level; where the budget's nodes run short, the
    level's best places are filled first. Whether a child is drawn is decided before it is drawn.

    threshold: above 0, at most 1; about 1 / nodes uses a budget up; width: most siblings, 1 to 64; power: 0 to 1. At 1, as
    published, a token that the draft gave a small probability counts as good as lost; yet where target and draft are both
    unsure they may agree, and a smaller power, fitted to what is accepted, gives deeper trees. Below a draw where
    the budget's go_on says stop nothing is drawn. A greedy draft gives certain children, the likeliest first, and counts
    their probabilities before shaping.

    Exact: law, under any exact verifier: a child's existence depends on its ancestors, on the siblings before it and on
    other branches, never on itself.
    Reduces to: `chain` where the draft is certain of every token, and at power 0; one level of siblings at depth 1.
    Source: DySpec (Xiong et al., 2024), threshold variant.
    """
    threshold: float = 0.1
    width: int = 8
    power: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}: it must be above 0 and at most 1")
        check_width(self.width)
        check_power(self.power)

    async def grow(self, session: Session, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        draft, tips = Draft.chain(root), [(1.0, 0)]           # nodes that may have children, and what a first one is worth
        for depth in range(1, budget.depth + 1):
            if not tips or len(draft) > budget.nodes:
                break
            scores = await session.score(draft, Want(base=Reads.ROW))
            draft, tips = self._level(draft, tips, scores, depth, budget, rng.at("draft", position))
        return draft

    def _level(self, draft: Draft, tips: list[tuple[float, int]], scores: Scores, depth: int, budget: Budget,
               rng: Rng) -> tuple[Draft, list[tuple[float, int]]]:
        places = [(-value, node, siblings(scores, node, rng.at(*below(draft, node)), self.width)) for value, node in sorted(
            tips, key=lambda tip: (-tip[0], tip[1]))]         # a heap; of one node never two places at once
        kept: list[tuple[float, int]] = []
        while places and len(draft) <= budget.nodes:
            value, node, more = heappop(places)
            child = next(more, None)
            if child is None:
                continue
            a, q = child.share ** self.power, child.q if budget.graded or child.law is not None else 1.0
            if -value * a >= self.threshold and budget.go_on(depth, q):
                kept.append((-value * a, len(draft)))
            if -value * (1.0 - a) >= self.threshold:
                heappush(places, (value * (1.0 - a), node, more))
            draft = draft.grown(child.token, node, child.draw, child.law, child.q)
        return draft, kept


def below(draft: Draft, node: int) -> tuple[int, ...]:
    """The tokens from the root (left out) to a node: what names its children's draws, in whatever order trees are built."""
    return tuple(draft.token[i] for i in draft.path_to(node))


def check_power(power: float) -> None:
    """Raise ValueError unless the power lies in 0 to 1."""
    if not 0.0 <= power <= 1.0:
        raise ValueError(f"power is {power}: it must lie in 0 to 1")


def check_width(width: int) -> None:
    """Raise ValueError unless a node may have 1 to 64 children."""
    if not 1 <= width <= 64:
        raise ValueError(f"width is {width}: it must lie in 1 to 64")
