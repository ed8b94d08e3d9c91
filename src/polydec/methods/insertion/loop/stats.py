"""What insertion counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class InsertStats:
    """passes: of the model over the text, that which finds nothing missing included; first: tokens that were final after the
    first of them; inserted: tokens that were put in; fed: positions that ran, the mark before the text and the end behind it
    included."""

    passes: int = 0
    first: int = 0
    inserted: int = 0
    fed: int = 0

    def seen(self, inserted: int, fed: int) -> InsertStats:
        """One more pass."""
        return InsertStats(self.passes + 1, self.first, self.inserted + inserted, self.fed + fed)

    def plus(self, other: InsertStats) -> InsertStats:
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
