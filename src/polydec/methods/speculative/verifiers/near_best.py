"""Accept what stands among the model's likeliest tokens, and not far behind the likeliest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path


@dataclass(frozen=True)
class NearBestVerifier:
    """As `match`, but a drafted token also passes where it is nearly the model's best one.

    Where no child has the drawn token, the first child stands in its place that is among the `top`
    likeliest tokens of the model's own row and whose log-probability lies at most `tolerance` below
    the likeliest's. The row is the one before shaping, so temperature and penalties move neither
    bound. The drafter must ask for these rows (`ScoreRequest.base`).

    Attributes:
        top: How many of the likeliest tokens may pass, at least 1. Default 5.
        tolerance: Largest distance from the likeliest token's log-probability, in nats, at least 0.
            Default 3.

    Exact: approximate: such tokens follow the draft, not the target's law.
    Reduces to: `match` at top 1 for greedy rows, and at tolerance 0 there but for ties.
    Source: Ge, Xia, Sun, Chen, Wei, "Lossless acceleration for seq2seq generation with aggressive
    decoding" (2022), the relaxed verification of its generalised half.
    """

    top: int = 5
    tolerance: float = 3.0
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if self.top < 1:
            raise RequestError(f"top is {self.top}: it must be at least 1")
        if not self.tolerance >= 0:
            raise RequestError(f"tolerance is {self.tolerance}: it must be at least 0")

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Follow the target's own draws, or where these were not drafted a nearly best token.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft, with the model's rows before
                shaping.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the token that follows them.
        """

        def pick_token(node: int, depth: int) -> int:
            """The token after a node: the target's own, or that of a nearly best child.

            Args:
                node: Index of the node.
                depth: Levels below the root, which give the position of the token.

            Returns:
                The token id.
            """
            # The target's own token is drawn first, so that randomness is used alike in every case.
            only = scores.certain_token(node)
            if only is None:
                token = rng.child_stream("token", position + depth).draw_categorical(
                    float64_probabilities(scores.logprob_row(node))
                )
            else:
                token = only
            # The relaxed rule is looked at only where verification would end; a node without
            # children has nothing to accept.
            if not draft.children[node] or draft.child_of(node, token) is not None:
                return token
            # Tokens of the model's own row that are near enough to its likeliest, which is the
            # first one.
            tokens, logp = scores.base.likeliest_tokens(node, self.top)
            near = {x for x, value in zip(tokens, logp) if logp[0] - value <= self.tolerance}
            # The first child in the order drawn: the drafter's own preference.
            drafted = (draft.token[child] for child in draft.children[node])
            return next((x for x in drafted if x in near), token)

        return follow_draft_path(draft, pick_token)
