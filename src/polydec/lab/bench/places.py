"""Where in a run a token was written: in which pass, and as what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

from polydec.core.trace import EditedEvent, OpenedEvent, TraceEvent


@dataclass(frozen=True)
class TokenPlace:
    """Where in a run one token of an answer was written.

    Attributes:
        step: The pass that gave it, from 1.
        depth: Its place among that pass's tokens, from 1.
        drafted: Whether it was an accepted draft token; else the pass's own.
    """

    step: int
    depth: int
    drafted: bool

    def __str__(self) -> str:
        if self.drafted:
            what = "an accepted draft"
        else:
            what = "the pass's own token"
        return f"pass {self.step}, place {self.depth} of its tokens ({what})"


@dataclass
class TokenPlaceObserver:
    """An observer that notes the place of every token, by choice.

    Attributes:
        of: Places of each choice's tokens, in order.
        steps: Passes of each choice so far.
        kinds: The events that it listens to.
    """

    of: defaultdict[int, list[TokenPlace]] = field(
        default_factory=lambda: defaultdict[int, list[TokenPlace]](list)
    )
    steps: defaultdict[int, int] = field(default_factory=lambda: defaultdict[int, int](int))
    kinds: ClassVar[tuple[type[TraceEvent], ...]] = (OpenedEvent, EditedEvent)

    def __call__(self, event: TraceEvent) -> None:
        if not isinstance(event, EditedEvent) or not event.tokens:
            return
        self.steps[event.choice] += 1
        # Accepted draft tokens come first, then the pass's own.
        self.of[event.choice] += [
            TokenPlace(self.steps[event.choice], depth, depth <= event.accepted)
            for depth in range(1, len(event.tokens) + 1)
        ]

    def token_place(self, choice: int, token: int) -> TokenPlace | None:
        """The place of a token.

        Args:
            choice: Number of the answer, from 0.
            token: Position in the answer, from 0.

        Returns:
            Its place; None where it was not written.
        """
        # `get`, as indexing a defaultdict would make an entry.
        mine = self.of.get(choice, [])
        if token < len(mine):
            return mine[token]
        return None
