"""Statistics of denoising."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DenoiseStats:
    """Counts of one answer.

    Attributes:
        passes: Passes of the model over the canvas.
        first: Tokens that were final after the first pass.
        unmasked: Gaps that were filled, those after the end of the answer included.
        fed: Positions that ran, over all passes.
        blocks: Blocks that were begun.
        most: Most gaps that one pass filled.
    """

    passes: int = 0
    first: int = 0
    unmasked: int = 0
    fed: int = 0
    blocks: int = 0
    most: int = 0

    def with_pass(self, unmasked: int, fed: int, new: int, opened: int) -> DenoiseStats:
        """Return the counts with one more pass.

        Args:
            unmasked: Gaps that the pass filled.
            fed: Positions that ran for it.
            new: Tokens that became final.
            opened: Blocks whose first pass it was.
        """
        return DenoiseStats(
            self.passes + 1,
            self.first if self.passes else new,
            self.unmasked + unmasked,
            self.fed + fed,
            self.blocks + opened,
            max(self.most, unmasked),
        )

    def plus_stats(self, other: DenoiseStats) -> DenoiseStats:
        """Both together: of two answers, or of two parts of one."""
        return DenoiseStats(
            self.passes + other.passes,
            self.first + other.first,
            self.unmasked + other.unmasked,
            self.fed + other.fed,
            self.blocks + other.blocks,
            max(self.most, other.most),
        )

    def metrics(self) -> dict[str, Any]:
        """Means over the passes; None where there was none."""
        n = self.passes
        return {
            "unmasked_per_pass": self.unmasked / n if n else None,
            "unmasked_most": self.most,
            "positions_per_pass": self.fed / n if n else None,
            "blocks": self.blocks,
        }
