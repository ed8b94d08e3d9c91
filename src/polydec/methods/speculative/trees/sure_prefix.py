"""The draft's likeliest tokens, as long as each of them is sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import likeliest_children


@dataclass(frozen=True)
class SurePrefixTree:
    """One path of likeliest tokens, as long as each of them is sure.

    Each token has a probability of at least `least` under the draft before a greedy rule. Where the
    budget's go_on says stop the path ends too.

    Attributes:
        least: Least probability of a token, at least 0; above 1 nothing is proposed. Default 0.
        repeats: Whether a token may repeat the one above it; else the path ends before it. Default:
            it may.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: the greedy chain at 0.
    Source: lexical unit decoding (Sun et al., 2024).
    """

    unexercised: ClassVar[Mapping[str, str]] = {
        "drawn": "its candidates are certain",
        "siblings": "a level has one node",
    }
    least: float = 0.0
    repeats: bool = True

    def __post_init__(self) -> None:
        if not self.least >= 0:
            raise RequestError(f"least is {self.least}: it must be at least 0")

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Take the likeliest token of each row while it is sure.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain.
        """
        draft = Draft.chain_draft(root)
        for depth in range(1, min(budget.depth, budget.nodes) + 1):
            scores = await laws.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
            token, q, graded = likeliest_children(scores, depth - 1, 1, budget)[0]
            # A token that is not sure does not enter the path, other than one at which go_on says
            # stop.
            if q < self.least or (token == draft.token[-1] and not self.repeats):
                break
            draft = draft.with_node(token, depth - 1, DrawKind.CERTAIN, None, q)
            if not budget.go_on(depth, graded):
                break
        return draft
