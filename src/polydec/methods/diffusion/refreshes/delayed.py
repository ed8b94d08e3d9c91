"""A token keeps its keys and values from the pass after the one that wrote it.

This is dKV-Cache-Decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class DelayedRefresh:
    """Feeds the gaps and what the pass before has written (one pass late).

    Every `every` passes of a block, and in its first two, all positions are fed. So the keys and
    values that are kept were never computed while a gap stood there.

    Attributes:
        every: Passes of a block after which everything is fed again, at least 1.

    Exact: no; what is kept does not see what was written later.
    Reduces to: full for every = 1.
    Source: Ma et al., dKV-Cache (2025).
    """

    every: int = 8

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> Sequence[int]:
        """Feed all that was a gap before this pass, or everything at a refresh.

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
        # What the pass before filled was a gap in `before`, so it is fed once more as a token.
        return [i for i in range(len(canvas)) if before[i] is None]
