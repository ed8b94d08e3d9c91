"""What a trace tells of drafts."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.trace import TraceEvent


@dataclass(frozen=True)
class ProposedEvent(TraceEvent):
    """A draft as it is fed to the target; node 0 is the root.

    Attributes:
        position: Absolute position of the first drafted token.
        token: Token id of each node.
        parent: Index of each node's parent, -1 for the root.
        piece: How each token reads by itself; empty where there is no tokenizer.
        probes: Nodes that are fed for their hidden states alone and can never be accepted.
    """

    position: int
    token: tuple[int, ...]
    parent: tuple[int, ...]
    piece: tuple[str, ...] = ()
    probes: tuple[int, ...] = ()


@dataclass(frozen=True)
class VerifiedEvent(TraceEvent):
    """Which nodes were accepted, and the token after them.

    Attributes:
        position: Absolute position of the first drafted token.
        path: Accepted nodes, top down, the root left out.
        bonus: Token id that follows the last accepted node.
    """

    position: int
    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True)
class ForcedEvent(TraceEvent):
    """Where the rules of the request (a constraint, say) left a single token.

    Attributes:
        position: Absolute positions of such tokens among those that the last round wrote.
    """

    position: tuple[int, ...]
