"""Draft and target draw with the same Gumbel noise, so that similar laws draw the same token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path


@dataclass(frozen=True)
class CoupledVerifier:
    """Draw the target's tokens with shared noise, and follow the child that has each.

    The token is the argmax of the target's row plus the position's noise. It is meant for the
    coupled trees, which draw with that noise: acceptance is at least (1 - TV) / (1 + TV) a
    candidate, with TV the total variation distance of the two laws.

    Exact: law. By the Gumbel-max identity each token is one draw from its row, under noise that is
    fresh for each position; a seed gives the same text under any drafter (another text than `match`
    gives).
    Reduces to: sampling by Gumbel-max without a draft.
    Source: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative
    decoding" (2024).
    """

    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Follow the tokens that the target draws with the shared noise.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text. The noise of each position is that of
                ``rng.child_stream("token", position)``, which a coupled tree uses as well.
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
                The argmax of log-probabilities plus the position's Gumbel noise.
            """
            # A greedy target's token is known without a row and without noise.
            only = scores.certain_token(node)
            if only is not None:
                return only
            # Gumbel-max: the argmax of log-probabilities plus Gumbel noise is one draw from the
            # law. The noise depends on the position alone, as the drafting tree's does.
            row_V = scores.logprob_row(node)
            return (
                rng.child_stream("token", position + depth)
                .gumbel_noise(len(row_V))
                .argmax_token(row_V)
            )

        return follow_draft_path(draft, pick_token)
