"""Statistics of insertion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InsertStats:
    """Counts of one answer.

    Attributes:
        passes: Passes of the model over the text, with the one that finds nothing missing.
        first: Tokens that were final after the first pass.
        inserted: Tokens that were inserted.
        fed: Positions that ran, with the mark before the text and the end after it.
    """

    passes: int = 0
    first: int = 0
    inserted: int = 0
    fed: int = 0

    def with_pass(self, inserted: int, fed: int) -> InsertStats:
        """Return the counts with one more pass.

        Args:
            inserted: Tokens that the pass inserted.
            fed: Positions that ran for it.
        """
        return InsertStats(self.passes + 1, self.first, self.inserted + inserted, self.fed + fed)

    def plus_stats(self, other: InsertStats) -> InsertStats:
        """Both together: of two answers, or of two parts of one."""
        return InsertStats(
            self.passes + other.passes,
            self.first + other.first,
            self.inserted + other.inserted,
            self.fed + other.fed,
        )

    def metrics(self) -> dict[str, Any]:
        """Means over the passes; None where there was none."""
        n = self.passes
        return {
            "inserted_per_pass": self.inserted / n if n else None,
            "positions_per_pass": self.fed / n if n else None,
        }
