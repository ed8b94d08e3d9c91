"""One path, drawn token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.speculative.loop.draws import categorical_pick
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import grow_single_path


@dataclass(frozen=True)
class ChainTree:
    """Draw one path: each token from the draft's law after the ones before it.

    It goes down to the budget's depth, or until its go_on says stop (the token that said so stays).
    A greedy draft's token is proposed with certainty, unread.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: no draft at depth 0.
    Source: Leviathan et al. (2023); Chen et al. (2023).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"siblings": "a level has one node"}

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Draw one path, token by token.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. The token of each depth is drawn at
                ``rng.child_stream("draft", position, depth)``.

        Returns:
            The chain.
        """
        return await grow_single_path(
            laws,
            root,
            budget,
            lambda depth: categorical_pick(rng.child_stream("draft", position, depth)),
        )
