"""At each level the likeliest paths of all that were drafted, as many as that level is wide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import likeliest_children


@dataclass(frozen=True)
class WidestTree:
    """At each level the likeliest paths of all that were drafted, as many as that level is wide.

    Level d holds the widths[d] likeliest paths of all that go one token on from a node of the level
    above: a node may have many children, or none. All nodes of a level are proposed, with
    certainty. One pass of the draft a level. A greedy draft's own token stands first, the others by
    the model before shaping, whose probabilities count. Below a token where the budget's go_on says
    stop nothing stands; where the budget has no room for a full level, the likeliest of it stand.

    Attributes:
        widths: Nodes of each level, 1 to 64 each, at least one level. Default 4, 16, 16, 16, 16.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: the greedy chain where every width is 1.
    Source: LongSpec (Yang et al., 2025), whose tree is 4, 16, 16, 16, 16.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"drawn": "its candidates are certain"}
    widths: tuple[int, ...] = (4, 16, 16, 16, 16)

    def __post_init__(self) -> None:
        if not self.widths or not all(1 <= w <= 64 for w in self.widths):
            raise RequestError(
                f"widths is {self.widths[:8]}: each level's must lie in 1 to 64, and there must be one level at least"
            )

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
        tree = TreeBuilder(root)
        fed = Draft.chain_draft(root)
        # For each path that goes on: its probability, its node in the proposed tree, and its node
        # in `fed`.
        tips = [(1.0, 0, 0)]
        for depth, width in enumerate(self.widths[: budget.depth], 1):
            room = min(width, budget.nodes + 1 - len(tree))
            if not tips or room < 1:
                break
            # Further candidates of a greedy law come from the model's law before shaping.
            scores = await laws.score_draft(fed, ScoreRequest(base=RowDetail.ROW))
            level = [
                (path * q, node, at, token, q, graded)
                for path, node, at in tips
                for token, q, graded in likeliest_children(scores, at, room, budget)
                if q > 0.0
            ]
            # The level keeps its likeliest nodes, whichever parents they have.
            level.sort(key=lambda path: -path[0])
            tips = []
            for path, node, at, token, q, graded in level[:room]:
                new = tree.add_node(node, token, q)
                if budget.go_on(depth, graded):
                    tips.append((path, new, len(fed)))
                    # Only nodes that may have children are fed with the next pass.
                    fed = fed.with_node(token, at, DrawKind.CERTAIN, None)
        return tree.built_draft()
