"""A tree of fixed shape whose nodes are the draft's likeliest tokens by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.economics.widths import Path, likeliest_paths
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import likeliest_children


@dataclass(frozen=True)
class RankedTree:
    """A tree of fixed shape whose nodes are the draft's likeliest tokens by rank.

    Node (a, b, …) has the draft's token of rank b after its token of rank a, where rank 0 is the
    likeliest. One pass of the draft a level, over the nodes that have children. A greedy draft's
    own token stands first, the others by the model before shaping. Below a node where the budget's
    go_on says stop nothing stands, and no path is proposed that is less likely than the budget's
    floor.

    Attributes:
        paths: Nodes as ranks of 0 to 63 from the root down; every beginning of a path is among
            them.

    Exact: law, under any exact verifier: candidates are certain. `match` accepts them as often as
    can be.
    Reduces to: the greedy chain where every rank is 0.
    Source: Medusa (Cai et al., 2024), the sparse tree.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"drawn": "its candidates are certain"}
    paths: tuple[Path, ...] = ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))

    def __post_init__(self) -> None:
        known = {(), *self.paths}
        if not self.paths or not all(p and p[:-1] in known and 0 <= p[-1] < 64 for p in self.paths):
            raise RequestError(
                f"paths is {self.paths[:8]}: it must hold ranks of 0 to 63, and every beginning of each path"
            )

    @staticmethod
    def of_rates(
        rates: Sequence[Sequence[float]], nodes: int, levels: int | None = None
    ) -> RankedTree:
        """The tree of the paths that are right most often.

        Args:
            rates: ``rates[d][r]`` is how often the token of rank r is right d + 1 levels below the
                root, 0 to 1.
            nodes: How many paths; fewer where there are no more.
            levels: Levels of the tree, at least 1; levels below the last rates have those again.
                None: as many as have rates.

        Returns:
            The tree.
        """
        if levels is not None:
            rates = (*rates, *[rates[-1]] * levels)[:levels]
        paths = [path for path, _ in likeliest_paths(rates, nodes)]
        # Shorter paths stand first, so that a parent comes before its children.
        return RankedTree(tuple(sorted(paths, key=lambda p: (len(p), p))))

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
        # For each path that goes on, its node in the proposed tree, its node in `fed`, which holds
        # inner nodes alone, and its probability.
        tips: dict[Path, tuple[int, int, float]] = {(): (0, 0, 1.0)}
        inner = {path[:-1] for path in self.paths}
        for depth in range(1, budget.depth + 1):
            level = [p for p in self.paths if len(p) == depth and p[:-1] in tips][
                : budget.nodes + 1 - len(tree)
            ]
            if not level:
                break
            scores = await laws.score_draft(fed, ScoreRequest(base=RowDetail.ROW))
            below = dict[Path, tuple[int, int, float]]()
            most = max(path[-1] for path in level) + 1
            # The likeliest tokens of each parent are listed once for all its children.
            ranks = {
                p: likeliest_children(scores, tips[p][1], most, budget)
                for p in dict.fromkeys(path[:-1] for path in level)
            }
            for path in level:
                token, q, graded = (*ranks[path[:-1]], *[(0, 0.0, 0.0)] * most)[path[-1]]
                node, at, above = tips[path[:-1]]
                # A law with fewer tokens than this rank has no such child: the list is filled up
                # with zeros.
                if q == 0.0 or above * q < budget.floor:
                    continue
                new = tree.add_node(node, token, q)
                if budget.go_on(depth, graded) and path in inner:
                    below[path] = new, len(fed), above * q
                    fed = fed.with_node(token, at, DrawKind.CERTAIN, None)
            tips = below
        return tree.built_draft()
