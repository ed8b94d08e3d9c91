"""A drafter that has seen what the text is written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.protocols import Session
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess


@dataclass(frozen=True)
class WithSource:
    """`drafter`, to which the text begins with `source`: for one that copies, where the model reads the source beside the text
    (an encoder's input).

    Exact: as `drafter` is.
    Reduces to: `drafter` where the source is empty.
    """

    drafter: Drafter
    source: tuple[int, ...]

    def open(self, prompt: Sequence[int], session: Session) -> DraftGuess:
        return self.drafter.open((*self.source, *prompt), session)


def with_source_text(drafter: Drafter, source: tuple[int, ...]) -> Drafter:
    """A drafter that copies, to which the text begins with what the model reads besides it.

    Args:
        drafter: Any drafter.
        source: Token ids of an encoder's input; empty where the model reads nothing else.

    Returns:
        The drafter itself where the source is empty.
    """
    if source:
        return WithSource(drafter, source)
    return drafter
