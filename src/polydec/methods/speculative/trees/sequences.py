"""Several whole sequences, drawn independently, as one tree."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScorer
from polydec.core.rng import Rng
from polydec.core.types import Draft
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.trees._draft_path import tree_score_want


@dataclass(frozen=True)
class SequencesTree:
    """Several sequences of the budget's depth, drawn independently, as one tree.

    Where they agree so far they share their nodes. The next tokens of all sequences at a node stand
    there as children, a token that several of them drew several times. The first of equal children
    has the tree below, the others are there to be counted. Where the budget's nodes run short, the
    first sequences go on. Below a draw where the budget's go_on says stop nothing is drawn. A
    greedy draft gives one certain child.

    Attributes:
        count: How many sequences, 1 to 64. Default 2.

    Exact: law, under any exact verifier: how many children a node has depends on how many sequences
    came to it. `k_seq` is made for them.
    Reduces to: `chain` where count is 1.
    Source: SpecTr (Sun et al., 2023).
    """

    count: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 64:
            raise RequestError(f"count is {self.count}: it must lie in 1 to 64")

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Draw the sequences, level by level.

        Args:
            laws: Scores the draft model's law at every node of a draft.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text. Sequence i draws at
                ``rng.child_stream("draft", position, i, depth)``.

        Returns:
            The tree, with equal siblings where several sequences drew one token.
        """
        # The node at which each sequence stands that goes on.
        draft = Draft.chain_draft(root)
        at = dict.fromkeys(range(self.count), 0)
        for depth in range(1, budget.depth + 1):
            if not at or len(draft) > budget.nodes:
                break
            scores = await laws.score_draft(draft, tree_score_want(budget))
            below = dict[int, int]()
            # By parent and token, the child that has the tree below.
            first: dict[tuple[int, int], int] = {}
            for i, node in at.items():
                if len(draft) > budget.nodes:
                    break
                pick = categorical_pick(rng.child_stream("draft", position, i, depth))
                token, draw, law_V, q = draw_draft_token(scores, node, pick, budget.graded)
                child = first.setdefault((node, token), len(draft))
                if budget.go_on(depth, q):
                    below[i] = child
                # A drawn token is added again for each sequence, to be counted by the verifier; a
                # certain one stands once.
                if child == len(draft) or law_V is not None:
                    draft = draft.with_node(token, node, draw, law_V, q)
            at = below
        return draft
