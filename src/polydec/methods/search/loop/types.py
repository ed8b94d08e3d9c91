"""Data that searches over texts exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.types import TokenCodec


@dataclass(frozen=True)
class CandidateText:
    """A text that was tried.

    Attributes:
        said: How it reads.
        tokens: Its token ids.
        mean: Mean log-probability of a token under the law that it was drawn from.
        value: What a reward says of it, 0 to 1. None: none was asked.
    """

    said: str
    tokens: tuple[int, ...]
    mean: float
    value: float | None = None


@dataclass(frozen=True)
class WrittenStep:
    """A step of a solution.

    Attributes:
        target: Whether the target wrote it, else the draft model.
        tokens: Its token ids, at least one.
    """

    target: bool
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class StepBoundary:
    """Where a step of a text ends.

    It ends with the token that completes one of `delimiters`, or after `most` tokens.

    Attributes:
        delimiters: Texts that end a step.
        most: Most tokens of a step, at least 1.
        words: Decodes tokens. None: only their number counts.
    """

    delimiters: tuple[str, ...]
    most: int
    words: TokenCodec | None

    def closes_step(self, step: Sequence[int]) -> bool:
        """Return whether these tokens, all of one step so far, are the complete step."""
        if len(step) >= self.most:
            return True
        # Decoded as one text: a delimiter may be spread over several tokens, or lie within one.
        if self.words is None:
            text = ""
        else:
            text = self.words.decode(step)
        return any(d in text for d in self.delimiters)


def answer_said(text: str, mark: str) -> str:
    """Return what a text answers, as it reads there.

    Args:
        text: The text.
        mark: What stands before an answer; its last occurrence counts, and the answer goes to the
            end of that line. "", or a mark that is missing: the answer is the last line.

    Returns:
        The answer without spaces around it and a full stop at its end.
    """
    # The last mark counts: a text may show examples, or correct itself.
    if mark and mark in text:
        behind = text.rpartition(mark)[2]
    else:
        behind = text.strip().rpartition("\n")[2]
    return behind.strip().partition("\n")[0].strip().rstrip(".")


def answer_of(text: str, mark: str) -> str:
    """Return what a text answers, in small letters: answers are compared by this.

    Args:
        text: The text.
        mark: What stands before an answer; "": the answer is the last line.
    """
    return answer_said(text, mark).lower()
