"""Expand the likeliest paths of a level, then keep the likeliest nodes of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer, DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import likeliest_children
from polydec.methods.speculative.trees.greedy_growth import check_width

Node = tuple[float, tuple[int, ...], float]
"""A candidate: its path's probability, the path's tokens, its own probability."""


@dataclass(frozen=True)
class BestFirstTree:
    """Expand the likeliest paths of each level, then propose the likeliest nodes of all.

    At each level the `width` paths that are likeliest under the draft get their `width` likeliest
    tokens as candidates. Of all candidates the budget's nodes with the likeliest paths are
    proposed, with certainty. One pass of the draft a level. A greedy draft's own token stands
    first, the others by the model before shaping, whose probabilities count. Below a token where
    the budget's go_on says stop nothing is expanded, and no path is proposed that is less likely
    than the budget's floor.

    Attributes:
        width: Tokens tried below a path, 1 to 64. Default 4.
        tips: Paths that are expanded at each level, 1 to 64. None: as many as `width`.

    Exact: law, under any exact verifier: candidates are certain. `match` accepts them as often as
    can be.
    Reduces to: the greedy chain at width 1.
    Source: EAGLE-2 (Li et al., 2024), the dynamic tree; here over any draft model.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"drawn": "its candidates are certain"}
    width: int = 4
    tips: int | None = None

    def __post_init__(self) -> None:
        check_width(self.width)
        if self.tips is not None and not 1 <= self.tips <= 64:
            raise RequestError(f"tips is {self.tips}: it must lie in 1 to 64")

    @property
    def expands(self) -> tuple[int, int]:
        """Tokens tried below a path, and paths expanded at each level.

        It is for code that grows this very tree by other means
        (methods/speculative/drafters/_states.py).
        """
        return self.width, self.width if self.tips is None else self.tips

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
            The tree, level by level, likelier siblings first.
        """
        # `fed` is what the draft model has scored: only expanded paths enter it, while `nodes`
        # collects all candidates.
        fed = Draft.chain_draft(root)
        # A tip: its node among those fed, and its path's probability, tokens and last chance.
        tips = [(0, (1.0, (), 1.0))]
        nodes = list[Node]()
        for depth in range(1, budget.depth + 1):
            if not tips or not budget.nodes:
                break
            scores = await laws.score_draft(fed, ScoreRequest(base=RowDetail.ROW))
            level = [
                (node, above, at, on)
                for at, above in tips
                for node, on in self._below(scores, at, above, depth, budget)
            ]
            # Children of all tips compete in one list, the likeliest path first.
            level.sort(key=lambda item: -item[0][0])
            nodes += [item[0] for item in level]
            tips = []
            # Expansion phase: the likeliest paths of this level are fed with the next pass.
            for node, _, at, on in level[: self.expands[1]]:
                if on:
                    tips.append((len(fed), node))
                    fed = fed.with_node(node[1][-1], at, DrawKind.CERTAIN, None)
        # Reranking phase: a path is never likelier than its beginnings, so with shorter paths first
        # on a tie the best nodes hold all their ancestors.
        nodes.sort(key=lambda node: (-node[0], len(node[1])))
        return _tree(root, nodes[: budget.nodes])

    def _below(
        self, scores: DraftScores, at: int, above: Node, depth: int, budget: DraftBudget
    ) -> list[tuple[Node, bool]]:
        """A node's candidates, and whether to go on below each."""
        return [
            ((above[0] * q, (*above[1], x), q), budget.go_on(depth, graded))
            for x, q, graded in likeliest_children(scores, at, self.width, budget)
            if q > 0.0 and above[0] * q >= budget.floor
        ]


def _tree(root: int, nodes: list[Node]) -> Draft:
    """The tree of these paths, level by level, likelier siblings first; no path lacks a prefix."""
    tree = TreeBuilder(root)
    place = dict[tuple[int, ...], int]({(): 0})
    for _, path, q in sorted(nodes, key=lambda node: len(node[1])):
        place[path] = tree.add_node(place[path[:-1]], path[-1], q)
    return tree.built_draft()
