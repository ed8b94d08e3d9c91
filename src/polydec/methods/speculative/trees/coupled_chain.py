"""One path, drawn with the noise that the target will use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.speculative.loop.draws import Pick
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import grow_single_path


@dataclass(frozen=True)
class CoupledChainTree:
    """Draw one path with the noise that the target will use.

    Each token is the argmax of the draft's row plus the noise of its position, that of
    rng.child_stream("token", position): the `coupled` verifier then draws the same token wherever
    the two laws are close.

    Exact: law, under the `coupled` verifier only, which reads no draft law.
    Reduces to: a greedy draft under a greedy target.
    Source: Daliri, Musco, Suresh (2024).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"siblings": "a level has one node"}

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Draw one path with the target's noise.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. The noise of a token is that of its own position, which
                the verifier uses again.

        Returns:
            The chain.
        """

        def likeliest_token(depth: int) -> Pick:
            """The argmax of a row plus the noise of the position at this depth."""
            # Depth 1 is the first drafted token, at `position`.
            return lambda law_V: (
                rng.child_stream("token", position + depth - 1)
                .gumbel_noise(len(law_V))
                .argmax_token(law_V)
            )

        return await grow_single_path(laws, root, budget, likeliest_token)
