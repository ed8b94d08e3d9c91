"""Only what was just written and a few gaps at the left are fed (dKV-Cache-Greedy)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.families.diffusion.types import Canvas, gaps


@dataclass(frozen=True)
class Window:
    """A pass feeds what the pass before has written, the leftmost gap of the block and the `width` gaps behind it; every
    `every` passes of a block, and in its first two, all positions. Only gaps that were fed can be filled.

    width: gaps beside the leftmost one, at least 0; every: at least 1.

    Exact: no; gaps outside the window keep what they saw, too.
    Reduces to: full for every = 1; delayed for a window over all gaps.
    Source: Ma et al., dKV-Cache-Greedy (2025); there the order is drawn beforehand, here it goes from the left.
    """

    width: int = 4
    every: int = 2

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> Sequence[int]:
        if before is None or step < 2 or step % self.every == 0:
            return range(len(canvas))
        new = [i for i, x in enumerate(canvas) if x is not None and before[i] is None]
        return sorted((*new, *gaps(canvas, block.start)[: self.width + 1]))
