"""Finished blocks of a block-causal model keep their keys and values (block diffusion)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas
from polydec.methods.diffusion.loop.types import gap_positions


@dataclass(frozen=True)
class BlockwiseRefresh:
    """Feeds one block of a block-causal model at a time.

    A pass feeds its own block, and together with the first pass of a block the one before it, now
    that it is complete. The first pass of an answer feeds all up to its first block's end.

    Attributes:
        size: Positions of the model's own blocks.
        inner: Passes of a part of a block, its first one excepted, feed that part alone (Fast-dLLM
            v2's sub-block cache).
        rerun: Positions of such a part, where passes feed the whole block for as long as the part
            begins with a gap. 0: they do not.

    Exact: the laws are the model's, unless `inner`.
    Reduces to: full for one block.
    Source: Arriola et al., block diffusion (2025); Wu et al., Fast-dLLM v2 (2025), with `inner` and
    `rerun`. There a whole block is fed once more alone.
    """

    size: int = 32
    inner: bool = False
    rerun: int = 0

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> range:
        """Feed the model's own block, and the one before it where that was just finished.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed.
        """
        stop = min(len(canvas), -(-block.stop // self.size) * self.size)
        if before is None:
            return range(stop)
        if self.inner and step and not self._again(canvas, block):
            return range(block.start, block.stop)
        # From the first position that was a gap in the pass before: its block's keys and values
        # were computed with gaps in it.
        first = gap_positions(before)[0]
        return range(first // self.size * self.size, stop)

    def _again(self, canvas: Canvas, block: range) -> bool:
        """Whether the part begins with a gap."""
        starts = self.rerun and block.start % self.size % self.rerun == 0
        return bool(starts) and canvas[block.start] is None
