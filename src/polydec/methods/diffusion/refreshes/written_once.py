"""A token is fed once, in the pass behind the one that wrote it (ENAT)."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import Canvas


@dataclass(frozen=True)
class WrittenOnceRefresh:
    """Feeds the gaps, and what was written since the pass before; the first pass feeds all.

    A network that encodes tokens apart from gaps is trained to go on so. To any other, tokens keep
    the keys and values that they had when they were first seen, in sight of more gaps.

    Exact: no: tokens do not see what was written behind them.
    Reduces to: full in the first pass of an answer.
    Source: Ni et al., "ENAT: rethinking spatial-temporal interactions in token-based image synthesis"
    (2024), its reuse of features.
    """

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> list[int]:
        """Feed gaps and new tokens.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.

        Returns:
            Positions to feed.
        """
        # Nothing is kept yet: the prompt is new, too.
        if before is None:
            return list(range(len(canvas)))
        # A token that was taken back and written anew is another one.
        known = dict(enumerate(before))
        return [p for p, x in enumerate(canvas) if x is None or known.get(p) != x]
