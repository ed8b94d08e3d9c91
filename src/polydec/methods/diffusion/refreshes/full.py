"""Everything is fed, every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class FullRefresh:
    """Feeds all positions of the canvas, in every pass.

    Exact: the laws are the model's.
    Reduces to: itself.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"reused": "every pass feeds everything anew"}

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> range:
        """Feed every position.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            All positions of the canvas.
        """
        return range(len(canvas))
