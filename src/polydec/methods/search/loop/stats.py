"""Statistics of a search."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class SearchStats:
    """Counts of one answer.

    One search writes all answers to a request. What it took as a whole (scored, ended, written,
    judged, refined) is counted with the first of them, so that sums over the answers count it once.
    Where each answer has a search of its own, each has its counts. Times are not here: they stand
    in every answer's `seconds`.

    Attributes:
        passes: Passes of the target that this answer took part in.
        first: Tokens that were certain after the first of them.
        scored: Tokens that were fed and scored, of all texts that were tried; those of a further
            prompt even where another text's cache held them.
        ended: Texts that came to an end.
        written: Tokens of all texts that were tried.
        judged: Texts, or beginnings of texts, that a reward was asked of.
        refined: Tokens drawn from the mean of several choices of experts, whose further rows count
            as scored.
    """

    passes: int = 0
    first: int = 0
    scored: int = 0
    ended: int = 0
    written: int = 0
    judged: int = 0
    refined: int = 0

    def plus_stats(self, other: SearchStats) -> SearchStats:
        """Return the sum of the counts of two answers, or of two parts of one."""
        return SearchStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def metrics(self) -> dict[str, Any]:
        """Return the figures by name.

        tokens_scored, tokens_written: of all texts that were tried; texts_ended: how many of them
        came to an end; texts_judged: how often a reward was asked for; tokens_refined: how many
        were drawn from the mean of several choices of experts, only where there are any.
        """
        if self.refined:
            refined = {"tokens_refined": self.refined}
        else:
            refined = {}
        return {
            "tokens_scored": self.scored,
            "texts_ended": self.ended,
            "tokens_written": self.written,
            "texts_judged": self.judged,
            **refined,
        }
