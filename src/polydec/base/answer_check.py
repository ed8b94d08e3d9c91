"""What says whether an answer is right."""

from __future__ import annotations

from typing import Protocol


class AnswerCheck(Protocol):
    """A rule for the answer to one question."""

    def is_right(self, text: str) -> bool | None:
        """Whether a text is the right answer; None where nothing here can say."""
        ...
