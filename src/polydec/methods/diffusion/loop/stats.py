"""What denoising counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DenoiseStats:
    """passes: of the model over the canvas; first: tokens that were final after the first of them; unmasked: gaps filled,
    those behind the end of the answer included; fed: positions that ran; blocks: begun; most: gaps filled by one pass."""

    passes: int = 0
    first: int = 0
    unmasked: int = 0
    fed: int = 0
    blocks: int = 0
    most: int = 0

    def seen(self, unmasked: int, fed: int, new: int, opened: int) -> DenoiseStats:
        """One more pass; new: tokens that became final; opened: blocks that it was the first of."""
        return DenoiseStats(
            self.passes + 1,
            self.first if self.passes else new,
            self.unmasked + unmasked,
            self.fed + fed,
            self.blocks + opened,
            max(self.most, unmasked),
        )

    def plus(self, other: DenoiseStats) -> DenoiseStats:
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
