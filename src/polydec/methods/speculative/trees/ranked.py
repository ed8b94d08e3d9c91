"""A tree of a shape that was fixed beforehand, whose nodes are the draft's likeliest tokens by rank."""

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
from polydec.methods.speculative.trees._line import likeliest_children


@dataclass(frozen=True)
class RankedTree:
    """Node (a, b, …) is the draft's likeliest token but b behind its likeliest but a. One pass of the draft a level, over the
    nodes that have children. A greedy draft's own token stands first, the others by the model before shaping.

    paths: ranks of 0 to 63 from the root down; they hold every beginning of each of them. Below a node where the budget's go_on
    says stop nothing stands.

    Exact: law, under any exact verifier: candidates are certain. `match` accepts them as often as can be.
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
    def of(rates: Sequence[Sequence[float]], nodes: int, levels: int | None = None) -> RankedTree:
        """The `nodes` paths (fewer where there are no more) that are right most often, where rates[d][r] is how often the
        token of rank r is right d + 1 levels below the root. levels: of the tree, at least 1; those below all that have rates
        have the last ones (None: as many as have rates)."""
        if levels is not None:
            rates = (*rates, *[rates[-1]] * levels)[:levels]
        paths = [path for path, _ in likeliest_paths(rates, nodes)]
        return RankedTree(tuple(sorted(paths, key=lambda p: (len(p), p))))

    async def grow(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        tree = TreeBuilder(root)
        fed = Draft.chain(root)
        # Of each path that goes on its node in the tree, and in `fed`.
        tips: dict[Path, tuple[int, int]] = {(): (0, 0)}
        inner = {path[:-1] for path in self.paths}
        for depth in range(1, budget.depth + 1):
            level = [p for p in self.paths if len(p) == depth and p[:-1] in tips][
                : budget.nodes + 1 - len(tree)
            ]
            if not level:
                break
            scores = await laws.score(fed, ScoreRequest(base=RowDetail.ROW))
            below = dict[Path, tuple[int, int]]()
            most = max(path[-1] for path in level) + 1
            ranks = {
                p: likeliest_children(scores, tips[p][1], most, budget)
                for p in dict.fromkeys(path[:-1] for path in level)
            }
            for path in level:
                token, q, graded = (*ranks[path[:-1]], *[(0, 0.0, 0.0)] * most)[path[-1]]
                # The law has no such rank.
                if q == 0.0:
                    continue
                node, at = tips[path[:-1]]
                new = tree.add(node, token, q)
                if budget.go_on(depth, graded) and path in inner:
                    below[path] = new, len(fed)
                    fed = fed.grown(token, at, DrawKind.CERTAIN, None)
            tips = below
        return tree.draft()
