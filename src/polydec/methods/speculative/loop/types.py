"""What drafters, verifiers and policies exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from polydec.base.values import fast_dataclass
from polydec.core.types import Draft


@fast_dataclass()
class Verdict:
    """The accepted nodes (root left out, top down), the token that follows them, and an importance weight. `prompt`: it
    is the prompt that stands here, for drafters that want its rows; who holds drafters passes it on to those alone. judged:
    those of the accepted nodes that a judge kept in the place of the target's own token."""

    path: tuple[int, ...]
    bonus: int
    logw: float = 0.0
    prompt: bool = False
    judged: tuple[int, ...] = ()

    def accepted(self, draft: Draft) -> tuple[int, ...]:
        """The tokens of the accepted nodes."""
        if self.path:
            return tuple([draft.token[i] for i in self.path])
        return ()

    def tokens(self, draft: Draft) -> tuple[int, ...]:
        """What the round has written: the accepted tokens and the one that follows them."""
        return (*self.accepted(draft), self.bonus)

    def committed(self, draft: Draft) -> tuple[int, ...]:
        """What a session commits after the round: the root and the accepted tokens; the last one written is the next root."""
        return (draft.token[0], *self.accepted(draft))


def can_always_continue(depth: int, q: float) -> bool:
    """The go_on of a budget that never stops early."""
    return True


@fast_dataclass()
class DraftBudget:
    """How much to guess: levels, nodes in all (root left out), siblings, and whether to go on below a draw of
    probability q at a depth (1 is the first): stop after a draw, never un-draw it. q of a certain draw is 1, or where
    `graded` the probability under the draft model before shaping. floor: less likely paths need not be named, 0 to 1."""

    depth: int = 4
    nodes: int = 8
    width: int = 1
    go_on: Callable[[int, float], bool] = field(default=can_always_continue)
    graded: bool = False
    floor: float = 0.0


def follow_draft_path(draft: Draft, pick: Callable[[int, int], int]) -> Verdict:
    """Walk down from the root: pick(node, its depth) is the token after a node; stop where no child has it."""
    node = 0
    last = len(draft.token) - 1
    path: list[int] = []
    while True:
        token = pick(node, len(path))
        if node < last:
            child = draft.child(node, token)
        else:
            child = None
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child
