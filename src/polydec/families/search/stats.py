"""What a search counts."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SearchStats:
    """passes: of the target that this answer took part in; first: tokens that were certain after the first of them; scored:
    tokens that were fed and scored, of all texts that were tried; ended: texts that came to an end.

    One search writes all answers to a request. What it took as a whole (scored, ended) is counted with the first of them, so
    that sums over the answers count it once.
    """
    passes: int = 0
    first: int = 0
    scored: int = 0
    ended: int = 0

    def plus(self, other: SearchStats) -> SearchStats:
        """Both together: of two answers, or of two parts of one."""
        return SearchStats(self.passes + other.passes, self.first + other.first, self.scored + other.scored,
                           self.ended + other.ended)

    def metrics(self) -> dict[str, Any]:
        """tokens_scored: of all texts that were tried; texts_ended: how many of them came to an end."""
        return {"tokens_scored": self.scored, "texts_ended": self.ended}
