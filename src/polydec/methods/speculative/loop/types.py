"""What drafters, verifiers and policies exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from polydec.base.values import fast_dataclass
from polydec.core.types import Draft


@fast_dataclass()
class Verdict:
    """What a verifier decides about a draft.

    Attributes:
        path: Accepted nodes, top down, the root left out.
        bonus: Token id that follows the last accepted node.
        logw: Logarithm of an importance weight. Default 0.
        prompt: Whether the draft is the prompt, fed for drafters that read its rows. A drafter that
            holds others passes such a verdict on to those alone.
        judged: Those of the accepted nodes that a judge put in place of the target's own token.
    """

    path: tuple[int, ...]
    bonus: int
    logw: float = 0.0
    prompt: bool = False
    judged: tuple[int, ...] = ()

    def accepted_tokens(self, draft: Draft) -> tuple[int, ...]:
        """The tokens of the accepted nodes."""
        if self.path:
            return tuple([draft.token[i] for i in self.path])
        return ()

    def written_tokens(self, draft: Draft) -> tuple[int, ...]:
        """What the round has written: the accepted tokens and the one that follows them."""
        return (*self.accepted_tokens(draft), self.bonus)

    def committed_tokens(self, draft: Draft) -> tuple[int, ...]:
        """The tokens that a session commits after the round: the root and the accepted ones.

        The last token written is not among them: it is the next root.
        """
        return (draft.token[0], *self.accepted_tokens(draft))


def can_always_continue(depth: int, q: float) -> bool:
    """The go_on of a budget that never stops early.

    Args:
        depth: Ignored.
        q: Ignored.

    Returns:
        True.
    """
    return True


@fast_dataclass()
class DraftBudget:
    """How much to guess in one draft.

    Attributes:
        depth: Most levels below the root.
        nodes: Most nodes in all, the root left out.
        width: Most siblings.
        go_on: Called with the depth of a drawn token (1 is the first) and its probability q; False
            ends the draft below that token. The token itself stays: a draw is never taken back,
            which would bias the law.
        graded: What q of a certain token is: the draft model's probability before shaping where
            True, else 1.
        floor: Paths that are less likely than this need not be proposed, 0 to 1.
    """

    depth: int = 4
    nodes: int = 8
    width: int = 1
    go_on: Callable[[int, float], bool] = field(default=can_always_continue)
    graded: bool = False
    floor: float = 0.0


def follow_draft_path(draft: Draft, pick: Callable[[int, int], int]) -> Verdict:
    """Walk down from the root as long as some child has the token that is picked.

    Args:
        draft: The draft to follow.
        pick: Called with a node and its depth (0 for the root), gives the token id that follows the
            node. It is called once a node of the path, in order.

    Returns:
        The nodes on the way, and as bonus the first picked token that no child has.
    """
    node = 0
    last = len(draft.token) - 1
    path: list[int] = []
    while True:
        # The token is picked before the draft is looked at, so that what was drafted moves no draw.
        token = pick(node, len(path))
        # Children stand after their parents, so the last node has none and needs no search.
        if node < last:
            child = draft.child_of(node, token)
        else:
            child = None
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child
