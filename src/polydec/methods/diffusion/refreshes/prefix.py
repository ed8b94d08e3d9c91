"""What stands before the block keeps its keys and values while it is filled (prefix cache)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class PrefixRefresh:
    """Feeds the block and all after it; its first pass feeds all positions.

    Exact: no; what stands before the block does not see what is written in it. Under a block-causal
    model it would be.
    Reduces to: full where every pass fills its block.
    Source: Wu et al., Fast-dLLM (2025), the prefix cache.
    """

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> range:
        """Feed everything in a block's first pass, else the block and all after it.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed.
        """
        return range(block.start if step else 0, len(canvas))
