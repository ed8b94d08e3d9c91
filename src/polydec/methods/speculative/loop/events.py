"""What a trace tells of drafts."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.trace import TraceEvent


@dataclass(frozen=True)
class ProposedEvent(TraceEvent):
    """A draft as it is fed: node 0 is the root. position: of the first drafted token; piece: how each token reads by itself,
    where that is known; probes: the nodes that are fed for their hidden states alone and can never be accepted."""

    position: int
    token: tuple[int, ...]
    parent: tuple[int, ...]
    piece: tuple[str, ...] = ()
    probes: tuple[int, ...] = ()


@dataclass(frozen=True)
class VerifiedEvent(TraceEvent):
    """Which nodes were accepted, and the token after them."""

    position: int
    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True)
class ForcedEvent(TraceEvent):
    """Where the rules of the request (a constraint, say) left a single token. position: of each one that the round before
    wrote."""

    position: tuple[int, ...]
