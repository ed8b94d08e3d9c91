"""One path that ends where a trained head expects that some token of it will be rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import tree_score_want
from polydec.models.learned.kinds.stop_head import StopHead


@dataclass(frozen=True)
class LearnedStopTree:
    """One path that ends where a trained head expects that some token of it will be rejected.

    It draws as `chain` does, and reads after each pass, from the draft's hidden state, how likely
    the token that was fed is accepted. Once 1 - the product of these chances is above `threshold`,
    the token just drawn is the last one.

    The state of a drawn token comes with the pass that draws the next one, so the newest token is
    never weighed, and a threshold of 0 gives two tokens. `chance` of a node is the head's where it
    was asked, else the draft's probability. The budget's depth is the longest draft; where its
    go_on says stop the draft ends as well.

    Attributes:
        head: Trained for this draft and its target.
        threshold: Chance of a rejection above which the draft ends, 0 to 1. Default 0.7.
        least: Tokens that are drawn in any case, 1 to 64. Default 1.

    Exact: law, under any exact verifier: the length depends on what was drawn before.
    Reduces to: `chain` at threshold 1.
    Source: SpecDec++ (Huang et al., 2024).
    """

    unexercised: ClassVar[Mapping[str, str]] = {"siblings": "a level has one node"}
    head: StopHead
    threshold: float = 0.7
    least: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise RequestError(f"threshold is {self.threshold}: it must lie in 0 to 1")
        if not 1 <= self.least <= 64:
            raise RequestError(f"least is {self.least}: it must lie in 1 to 64")

    @staticmethod
    def of_depth(depth: int, head: StopHead, threshold: float, least: int) -> LearnedStopTree:
        """The tree for drafts of a given depth.

        Args:
            depth: Most tokens of a draft.
            head: Trained for this draft and its target.
            threshold: Chance of a rejection above which the draft ends, 0 to 1.
            least: Tokens that are drawn in any case, 1 to ``depth``.

        Returns:
            The tree.

        Raises:
            RequestError: ``least`` says that no draft could stop early.
        """
        if depth >= 0 and not 1 <= least <= max(depth, 1):
            raise RequestError(f"least is {least}: it must lie in 1 to depth, which is {depth}")
        return LearnedStopTree(head, threshold, least)

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Draw one path until the head expects a rejection.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The chain, with the head's chances where it was asked.
        """
        draft = Draft.chain_draft(root)
        chances = [1.0]
        all_ = 1.0
        # At threshold 1 nothing ends early, so hidden states are not worth reading.
        if self.threshold < 1.0:
            want = replace(tree_score_want(budget), hidden=True)
        else:
            want = tree_score_want(budget)
        for depth in range(1, min(budget.depth, budget.nodes) + 1):
            scores = await laws.score_draft(draft, want)
            hidden_NH = scores.hidden_NH
            # The head's chance of the token that this pass has fed replaces the draft's probability
            # of it.
            if depth > 1 and hidden_NH is not None:
                chances[-1] = self.head.success_chance(hidden_NH[depth - 1])
                all_ *= chances[-1]
            pick = categorical_pick(rng.child_stream("draft", position, depth))
            token, draw, law_V, q = draw_draft_token(scores, depth - 1, pick, budget.graded)
            draft = draft.with_node(token, depth - 1, draw, law_V, q)
            chances.append(q)
            # The draft ends once the chance that some token so far is rejected exceeds the
            # threshold.
            if not budget.go_on(depth, q) or (depth >= self.least and 1.0 - all_ > self.threshold):
                break
        return replace(draft, chance=tuple(chances))
