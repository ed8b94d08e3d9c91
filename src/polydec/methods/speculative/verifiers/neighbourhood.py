"""Accept a token of a picture whose look-alikes together are likely enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness
from polydec.methods.speculative.loop.draws import draw_target_token
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path
from polydec.models.learned.kinds.upsampler import PictureUpsampler


@dataclass(frozen=True)
class NeighbourhoodVerifier:
    """Tests a token by the probability that it and the tiles that look most like it have together.

    The neighbourhood of a tile are the `near` tiles whose pixels lie nearest, itself among them. A
    drafted token is accepted where the target's row gives its neighbourhood `threshold` or more; the
    first such child of a node is taken. Where none is, the token is drawn from the row, and the child
    that has it is followed. A greedy row accepts whatever has its token for a neighbour. A token that
    draws nothing is its only neighbour.

    Attributes:
        upsampler: What knows the tiles.
        near: Tiles of a neighbourhood, 1 or more. Default 4.
        threshold: Probability that it needs, 0 to 2; above 1 nothing is accepted. Default 0.1.
        legal: Whether a token without a probability of its own is refused, as where a constraint says
            which texts are allowed. Default: neighbours speak for it.

    Exact: approximate: whoever is likely enough stands, however likely others are.
    Reduces to: `match` for a threshold above 1; a bound on the token's own probability for near 1.
    Source: "Multi-scale local speculative decoding for image generation" (MuLo-SD, 2026); the pooling:
    Jang et al., "LANTERN" (2024), whose test is random.
    """

    upsampler: PictureUpsampler
    near: int = 4
    threshold: float = 0.1
    legal: bool = False
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if self.near < 1:
            raise RequestError(f"near is {self.near}: it must be at least 1")
        if not 0 <= self.threshold <= 2:
            raise RequestError(f"threshold is {self.threshold}: it must lie in 0 to 2")

    def accepts_token(self, scores: DraftScores, node: int, token: int) -> bool:
        """Test a token.

        Args:
            scores: The target's scores.
            node: The node that the token follows.
            token: Its id.

        Returns:
            Whether it may stand.
        """
        # A token that draws nothing looks like no other.
        near = [token]
        if token < len(self.upsampler.tiles):
            near = self.upsampler.near_tiles(self.near)[token].tolist()
        # A greedy row has all of its probability at one token, and none need be added up.
        only = scores.certain_token(node)
        if only is not None:
            return self.threshold <= 1 and only in (near[:1] if self.legal else near)
        logp_V = scores.logprob_row(node)
        # What a constraint forbids has no probability, whatever its neighbours have.
        if self.legal and float(logp_V[token]) == NEG_INF:
            return False
        return float(logp_V[near].exp().sum()) >= self.threshold

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Follow children that may stand, and draw a token where there is none.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes and the token that follows them.
        """

        def pick_token(node: int, depth: int) -> int:
            """The token after a node.

            Args:
                node: Index of the node.
                depth: Levels below the root, which give the position of the token.

            Returns:
                The token id.
            """
            # The first child that may stand: a drafter puts its best guess first.
            for child in draft.children[node]:
                if self.accepts_token(scores, node, draft.token[child]):
                    return draft.token[child]
            return draw_target_token(scores, node, rng.child_stream("token", position + depth))

        return follow_draft_path(draft, pick_token)
