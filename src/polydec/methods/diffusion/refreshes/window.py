"""Feed what was just written, the next gaps and a few around them (dKV-Cache-Greedy)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from polydec.core.canvas_law import Canvas
from polydec.methods.diffusion.loop.types import Rank, gap_positions, sort_by_rank


@dataclass(frozen=True)
class WindowRefresh:
    """Feeds a small window: the tokens just written, the next gaps, and their neighbours.

    A pass feeds what the pass before has written, the `count` gaps of the block whose turn comes
    next, and around each of these the `width` nearest other gaps, one at its left and one at its
    right by turns. Every `every` passes of a block, and in its first two, all positions are fed.
    Only gaps that were fed can be filled.

    Attributes:
        width: Neighbours of each next gap, at least 0.
        every: Passes of a block after which everything is fed again, at least 1.
        count: Gaps that a pass fills, at least 1.
        rank: Rank of each position, the lowest first, as `InOrderUnmasker` has it; () is an order
            from the left, so that all neighbours stand at the right.

    Exact: no; gaps outside the window keep what they saw, too.
    Reduces to: full for every = 1; delayed for a window over all gaps.
    Source: Ma et al., dKV-Cache-Greedy (2025); there the order is drawn beforehand.
    """

    width: int = 4
    every: int = 2
    count: int = 1
    rank: Rank = ()

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> Sequence[int]:
        """Feed the window, or everything at a refresh.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed, ascending.
        """
        if before is None or step < 2 or step % self.every == 0:
            return range(len(canvas))
        # A token is fed once after it was written: its keys were computed for a gap.
        new = [i for i, x in enumerate(canvas) if x is not None and before[i] is None]
        # Neighbours may lie after the block; the next gaps may not.
        left = gap_positions(canvas, block.start)
        now = sort_by_rank(gap_positions(canvas, block.start, block.stop), self.rank)[: self.count]
        near = {p for at in now for p in neighbours_by_turns(at, left)[: self.width]}
        return sorted({*new, *now, *near})


def neighbours_by_turns(at: int, positions: Sequence[int]) -> list[int]:
    """Return the other positions by distance, one at the left and one at the right by turns.

    Args:
        at: Position in the middle; it is left out.
        positions: Positions, ascending.
    """
    before = [p for p in reversed(positions) if p < at]
    behind = [p for p in positions if p > at]
    return [p for p in chain(*zip_longest(before, behind)) if p is not None]
