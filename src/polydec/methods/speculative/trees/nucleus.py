"""Grow as long as nodes are left, by the likeliest paths of tokens in the nucleus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer, DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import likeliest_children

TRIED = 64
"""Most tokens of a law that are looked at: no tree of Clover's has more nodes."""


@dataclass(frozen=True)
class NucleusTree:
    """Grow as long as nodes are left: of each level the likeliest paths with tokens in the nucleus.

    Below each node of a level those tokens are candidates that lie in the nucleus of its law (as
    few of the likeliest as have `mass` together) and are at least `share` as likely as the
    likeliest. Of all candidates of the level those with the likeliest paths are taken, with
    certainty, as many as there are nodes left: where the draft is sure the tree is deep, else wide.
    One pass of the draft a level. Below a token where the budget's go_on says stop nothing is
    taken.

    Attributes:
        mass: Probability of the nucleus, above 0, at most 1. Default 0.95.
        share: Least probability of a candidate, as a share of the likeliest token's, 0 to 1.
            Default 0.25.

    Exact: law, under any exact verifier: candidates are certain. `match` accepts them as often as
    can be.
    Reduces to: the greedy chain at share 1 (where no two tokens are equally likely).
    Source: Clover (Xiao et al., 2024), sampling of the token tree.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"drawn": "its candidates are certain"}
    mass: float = 0.95
    share: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 < self.mass <= 1.0:
            raise RequestError(f"mass is {self.mass}: it must be above 0 and at most 1")
        if not 0.0 <= self.share <= 1.0:
            raise RequestError(f"share is {self.share}: it must lie in 0 to 1")

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Grow the tree with one pass of the draft a level.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        draft = Draft.chain_draft(root)
        tips = [(0, 1.0)]
        for depth in range(1, budget.depth + 1):
            # The nodes that are left bound both the candidates of a node and the level.
            left = budget.nodes + 1 - len(draft)
            if not tips or not left:
                break
            scores = await laws.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
            level = [
                (path * q, q, token, at, budget.go_on(depth, graded))
                for at, path in tips
                for token, q, graded in self._candidates(scores, at, left, budget)
            ]
            # Candidates of all nodes of the level compete for the nodes that are left.
            level.sort(key=lambda candidate: -candidate[0])
            tips = []
            for path, q, token, at, on in level[:left]:
                if on:
                    tips.append((len(draft), path))
                draft = draft.with_node(token, at, DrawKind.CERTAIN, None, q)
        return draft

    def _candidates(
        self, scores: DraftScores, at: int, left: int, budget: DraftBudget
    ) -> list[tuple[int, float, float]]:
        """The candidates of a node as (token, probability, what to ask go_on with), best first."""
        rows = likeliest_children(scores, at, min(left, TRIED), budget)
        kept = list[tuple[int, float, float]]()
        seen = 0.0
        top = max(q for _, q, _ in rows)
        for row in rows:
            # The token that fills the nucleus up belongs to it, so the mass is compared before it
            # is added.
            if seen >= self.mass or row[1] < self.share * top:
                break
            kept.append(row)
            seen += row[1]
        return [row for row in kept if row[1] > 0.0]
