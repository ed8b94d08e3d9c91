"""What stands before the block keeps its keys and values for good (FreeCache)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas
from polydec.methods.diffusion.loop.types import gap_positions


@dataclass(frozen=True)
class FrozenRefresh:
    """The first pass of an answer feeds all positions, the others the block and what stands behind it.

    delay: the first pass of a block feeds what was written last before it once more: the pass that wrote it saw gaps there.
    every: passes of a block after which everything is fed again (0: never).

    Exact: no, but under a block-causal model with `delay`.
    Reduces to: full for every = 1.
    Source: Hu et al., FlashDLM (2025); there, delay is off and nothing is ever fed again.
    """

    delay: bool = True
    every: int = 0

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> range:
        if before is None or (self.every and step % self.every == 0):
            return range(len(canvas))
        if self.delay:
            late = gap_positions(before, 0, block.start)
        else:
            late = ()
        return range(min((block.start, *late)), len(canvas))
