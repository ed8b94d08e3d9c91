"""Write tokens that are the likeliest in two passes in a row (CCD, as released)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices

State = tuple[Mapping[int, int], int, int]
"""Of the surest gaps of the pass before the likeliest token; passes of this block so far; gaps at
its begin.
"""


@dataclass(frozen=True)
class AgreementUnmasker:
    """Writes tokens that are the likeliest in two passes in a row.

    The surest gaps are compared with those of the pass before. Where the surest of all was among
    them, every gap that is in both sets with the same likeliest token is written; else the surest
    alone.

    Attributes:
        warmup: Passes of a block that compare one gap. Each later pass compares one more, up to
            `most`, and two once a tenth of the block is left.
        most: Most gaps that a pass compares, at least 1.
        count: Most gaps that a pass writes of those that agree, the surest first, as in the
            authors' uniform mode. 0: all.

    Exact: no.
    Reduces to: confidence, one a pass, for most = 1.
    Source: Chen et al., Beyond confidence (2025), the released code; there a warm-up is counted
    over the whole canvas.
    """

    warmup: int = 5
    most: int = 5
    count: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness

    def start_state(self, canvas: Canvas) -> State:
        return {}, 0, 0

    def enter_block(self, state: State, count: int) -> State:
        """Forget the block before.

        Args:
            state: State after the block before; not needed.
            count: Gaps of the block that begins.

        Returns:
            The state with which the block begins.
        """
        return {}, 0, count

    def choose_edit(self, state: State, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, State]:
        """Write the gaps that agree with the pass before, or the surest gap.

        Args:
            state: Likeliest tokens of the pass before by position, passes of the block, gaps at its
                begin.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, (before, step, count) = look.inside_block(), state
        tokens = look.draw_tokens(rng)
        likeliest = look.logp_RV.argmax(-1).tolist()
        # Gaps are ranked by the drawn token's probability, but compared by their likeliest token.
        order = best_indices(look.token_confidence(tokens), len(look.rows))
        size = self._size(step, len(look.rows), count)
        chosen = order[:1]
        # The surest gap must have been compared before: else nothing says that the model settled.
        if look.rows[order[0]] in before:
            agreed = [i for i in order[:size] if before.get(look.rows[i]) == likeliest[i]]
            chosen = agreed[: self.count or None] or chosen
        # The next pass compares with the surest gaps that stay gaps.
        left = [i for i in order if i not in chosen][:size]
        return look.fill_edit(chosen, tokens), (
            {look.rows[i]: likeliest[i] for i in left},
            step + 1,
            count,
        )

    def _size(self, step: int, left: int, count: int) -> int:
        """Return how many gaps this pass compares."""
        if step >= self.warmup and left * 10 <= count:
            return min(2, self.most)
        return max(1, min(self.most, step - self.warmup + 2))
