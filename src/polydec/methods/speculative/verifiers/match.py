"""Draw the target's own token, then see whether it was drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path


@dataclass(frozen=True)
class MatchVerifier:
    """Draw each token from the target's own row, and follow the child that has it.

    Draws are made by rng.child_stream("token", position). It is best for certain candidates: any
    fixed set of children is accepted as often as the target's law allows.

    Exact: law. Every token is one draw from its row, and the draw never looks at the draft; a seed
    gives the text of plain decoding whatever was drafted.
    Reduces to: plain sampling without a draft.
    Source: Xia et al., SpecDec (2022), for greedy rows; Miao et al., SpecInfer (2023), "naive
    sampling", for laws.
    """

    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Draw the target's own tokens as long as they were drafted.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text. Each token is drawn at ``rng.child_stream("token", position)``, as
                plain decoding draws it.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the first drawn token that was not drafted.
        """

        def pick_token(node: int, depth: int) -> int:
            """The target's token after a node.

            Args:
                node: Index of the node.
                depth: Levels below the root, which give the position of the token.

            Returns:
                The token id.
            """
            # A greedy target's token is known without a row and without a draw.
            only = scores.certain_token(node)
            if only is None:
                return rng.child_stream("token", position + depth).draw_categorical(
                    float64_probabilities(scores.logprob_row(node))
                )
            return only

        return follow_draft_path(draft, pick_token)
