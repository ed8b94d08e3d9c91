"""All but the block keeps its keys and values while the block is filled (dual cache)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class DualRefresh:
    """Feeds the block alone, but for its first pass, which feeds all positions.

    Exact: no; neither what stands before the block nor the gaps behind it see what is written in
    it.
    Reduces to: full where every pass fills its block, prefix in the last block.
    Source: Wu et al., Fast-dLLM (2025), DualCache.
    """

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> range:
        """Feed everything in a block's first pass, else the block alone.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed.
        """
        if step:
            return range(block.start, block.stop)
        return range(len(canvas))
