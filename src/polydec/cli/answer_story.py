"""What a trace tells of one answer, gathered from its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.trace import PassedEvent, TraceEvent
from polydec.core.trace import replay as replay_edits
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent

Key = tuple[int, int]
"""Of a story: the request, from 0 in the order in which they were asked, and its choice."""


@dataclass
class TraceRound:
    """One pass of a drafting method.

    Attributes:
        position: Position of the first token that it wrote.
        drafted: Draft tokens; several for one position where the draft is a tree.
        depth: Levels of the draft.
        accepted: Draft tokens that were accepted.
        pieces: Pieces of text that it wrote.
        forced: Numbers of the pieces that the request's rules forced.
    """

    position: int
    drafted: int = 0
    depth: int = 0
    accepted: int = 0
    pieces: tuple[str, ...] = ()
    forced: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TraceDraftTree:
    """A draft as it was fed.

    Attributes:
        parent: Parent of each node; node 0 is the root.
        token: Token id of each node.
        piece: Text of each node.
        path: Nodes that were accepted.
    """

    parent: tuple[int, ...]
    token: tuple[int, ...]
    piece: tuple[str, ...]
    path: tuple[int, ...] = ()


@dataclass
class ChoiceTrace:
    """What a trace tells of one choice.

    Attributes:
        method: The method and its guarantee, in words.
        head: What its opening says of the model and the request.
        prompt: Tokens of the prompt.
        rounds: Its passes, with the pieces that each wrote.
        canvas: Its passes, for a method that fills a canvas.
        back: What a canvas put back, by the number of its pass.
        trees: Drafts, by the number of their round.
        passes: Passes of all models that it took part in.
        ids: Token ids of the prompt.
        edits: Edits of the text, in order.
        branches: Events of a search.
        finish: Why it ended, in words.
    """

    method: str = ""
    head: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prompt: int = 0
    rounds: list[TraceRound] = field(default_factory=list[TraceRound])
    canvas: list[UnmaskedEvent] = field(default_factory=list[UnmaskedEvent])
    back: dict[int, RemaskedEvent] = field(default_factory=dict[int, RemaskedEvent])
    trees: dict[int, TraceDraftTree] = field(default_factory=dict[int, TraceDraftTree])
    passes: list[PassedEvent] = field(default_factory=list[PassedEvent])
    ids: tuple[int, ...] = ()
    edits: list[TextEdit] = field(default_factory=list[TextEdit])
    branches: list[TraceEvent] = field(default_factory=list[TraceEvent])
    finish: str = "not finished"

    @property
    def tokens(self) -> int:
        return sum(len(r.pieces) for r in self.rounds)

    @property
    def written(self) -> list[int]:
        """The tokens of the answer.

        Raises:
            RequestError: An edit erases what was never there.
        """
        try:
            # The edits applied in order give the text that the user got.
            return replay_edits(self.ids, self.edits)
        except IndexError:
            raise RequestError("a trace erases a position that holds nothing") from None
