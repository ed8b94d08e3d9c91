"""Passages in a prompt: what stands between two marks may be read as vectors, everything else is
read as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PassageMarks:
    """The tokens before and behind a passage. Both are read as tokens."""

    opening: int
    closing: int


def split_passages(ids: Sequence[int], marks: PassageMarks) -> Iterator[tuple[range, bool]]:
    """Split a prompt at the passages that stand between marks.

    An opening mark that is never closed begins no passage, and an empty passage is left out.

    Args:
        ids: Tokens of the prompt.
        marks: The tokens before and behind a passage.

    Returns:
        The ranges of positions in order, which cover the prompt, and of each whether it is a
        passage. Marks lie in the ranges outside of passages.
    """
    first = at = 0
    # `first` is where the part of plain text began that has not been given out yet.
    while at < len(ids):
        # A false comparison leaves False, which counts as no place.
        closed = ids[at] == marks.opening and _closed(ids, at + 1, marks)
        # Nothing between the marks is no passage: an encoder cannot read zero tokens.
        if closed and closed > at + 1:
            yield range(first, at + 1), False
            yield range(at + 1, closed), True
            first = at = closed
        else:
            at += 1
    yield range(first, len(ids)), False


def _closed(ids: Sequence[int], at: int, marks: PassageMarks) -> int:
    """Where a passage that begins there is closed; 0: nowhere, or another one is opened first."""
    while at < len(ids) and ids[at] != marks.closing:
        # Passages do not nest: the inner one may still be closed, so the outer one is plain text.
        if ids[at] == marks.opening:
            return 0
        at += 1
    if at < len(ids):
        return at
    return 0
