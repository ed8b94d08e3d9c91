"""A token keeps its keys and values from the pass after the one that wrote it (dKV-Cache-Decode)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class DelayedRefresh:
    """A pass feeds the gaps and what the pass before has written; every `every` passes of a block, and in its first two, all
    positions. So what is kept was never computed while a gap stood there.

    every: at least 1.

    Exact: no; what is kept does not see what was written later.
    Reduces to: full for every = 1.
    Source: Ma et al., dKV-Cache (2025).
    """

    every: int = 8

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> Sequence[int]:
        if before is None or step < 2 or step % self.every == 0:
            return range(len(canvas))
        return [i for i in range(len(canvas)) if before[i] is None]
