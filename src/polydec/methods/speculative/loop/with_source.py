"""A drafter that has seen what the text is written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.protocols import Session
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess


@dataclass(frozen=True)
class WithSource:
    """`drafter`, for which the text begins with `source`.

    It is meant for drafters that copy, where the model reads the source separately (an encoder's
    input).

    Attributes:
        drafter: Any drafter.
        source: Token ids of what the text is written from.

    Exact: as `drafter` is.
    Reduces to: `drafter` where the source is empty.
    """

    drafter: Drafter
    source: tuple[int, ...]

    def open_guess(self, prompt: Sequence[int], session: Session) -> DraftGuess:
        """Begin a sequence of the drafter, on source and prompt.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The drafter's own guess.
        """
        return self.drafter.open_guess((*self.source, *prompt), session)


def with_source_text(drafter: Drafter, source: tuple[int, ...]) -> Drafter:
    """A drafter that copies, for which the text begins with what the model reads separately.

    Args:
        drafter: Any drafter.
        source: Token ids of an encoder's input; empty where the model reads nothing else.

    Returns:
        The drafter itself where the source is empty.
    """
    if source:
        return WithSource(drafter, source)
    return drafter
