"""What stands before the block keeps its keys and values for good (FreeCache)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas
from polydec.methods.diffusion.loop.types import gap_positions


@dataclass(frozen=True)
class FrozenRefresh:
    """Feeds the block and what stands after it; the first pass of an answer feeds all.

    Attributes:
        delay: The first pass of a block also feeds what was written last before the block: the pass
            that wrote it saw gaps there.
        every: Passes of a block after which everything is fed again. 0: never.

    Exact: no, but under a block-causal model with `delay`.
    Reduces to: full for every = 1.
    Source: Hu et al., FlashDLM (2025); there, delay is off and nothing is ever fed again.
    """

    delay: bool = True
    every: int = 0

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> range:
        """Feed from the block on; with `delay` from the last tokens before it that were gaps.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed.
        """
        if before is None or (self.every and step % self.every == 0):
            return range(len(canvas))
        # Positions before the block that the pass before filled: their cached keys are those of
        # gaps.
        if self.delay:
            late = gap_positions(before, 0, block.start)
        else:
            late = ()
        return range(min((block.start, *late)), len(canvas))
