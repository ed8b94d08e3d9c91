"""What searches over whole texts exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.types import TokenCodec


@dataclass(frozen=True)
class CandidateText:
    """A text that was tried. said: as it reads; mean: log-probability of a token, on average, under the law that it was drawn
    from; value: what a reward says of it, 0 to 1, None where none was asked."""

    said: str
    tokens: tuple[int, ...]
    mean: float
    value: float | None = None


@dataclass(frozen=True)
class WrittenStep:
    """A step. target: whether the target wrote it, else the draft model; tokens: of it, at least one."""

    target: bool
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class StepBoundary:
    """Where a step of a text ends: with the token that completes one of `delimiters`, or after `most` tokens (at least 1).
    words: how tokens read; without them only their number counts."""

    delimiters: tuple[str, ...]
    most: int
    words: TokenCodec | None

    def closes(self, step: Sequence[int]) -> bool:
        """Whether these tokens, all of one step so far, are the whole of it."""
        if len(step) >= self.most:
            return True
        if self.words is None:
            text = ""
        else:
            text = self.words.decode(step)
        return any(d in text for d in self.delimiters)


def answer_said(text: str, mark: str) -> str:
    """What a text answers, as it reads there: what stands behind the last `mark`, to the end of that line, or its last line
    where the mark is "" or missing. Without spaces around it and a full stop at its end."""
    if mark and mark in text:
        behind = text.rpartition(mark)[2]
    else:
        behind = text.strip().rpartition("\n")[2]
    return behind.strip().partition("\n")[0].strip().rstrip(".")


def answer_of(text: str, mark: str) -> str:
    """What a text answers, without capitals: by this answers are compared."""
    return answer_said(text, mark).lower()
