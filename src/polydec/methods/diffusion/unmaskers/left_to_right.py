"""Gaps from the left, as an autoregressive model writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.states import new_pace, no_pace, unexercised_by_steps
from polydec.methods.diffusion.loop.types import Pace, UnmaskerView, bounded_pass_quota


@dataclass(frozen=True)
class LeftToRightUnmasker:
    """Fills the leftmost gaps.

    Attributes:
        steps: Passes that a block is given, its gaps spread evenly over them, more first. 0: one
            gap a pass.

    Exact: one gap a pass gives a draw from the model's law in this order.
    Reduces to: any order in blocks of one position.
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    start_state = no_pace
    enter_block = new_pace
    unexercised = unexercised_by_steps

    @property
    def exactness(self) -> Exactness:
        if self.steps:
            return Exactness.APPROXIMATE
        return Exactness.LAW

    def choose_edit(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        """Fill the leftmost gaps, up to the pass's quota.

        Args:
            state: Gaps of the block at its begin, and its passes so far.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        # Rows ascend by position, so the first rows are the leftmost gaps.
        chosen = range(bounded_pass_quota(state, self.steps, len(look.rows)))
        return look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen}), (
            state[0],
            state[1] + 1,
        )
