"""The gaps of lowest entropy first (Dream's recommended order)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import (
    approximate_exactness,
    new_pace,
    no_pace,
    unexercised_by_steps,
)
from polydec.methods.diffusion.loop.types import (
    Pace,
    UnmaskerView,
    best_indices,
    bounded_pass_quota,
)


@dataclass(frozen=True)
class EntropyUnmasker:
    """Fills the gaps whose law, the model's own and unshaped, has the lowest entropy.

    Attributes:
        steps: Passes that a block is given, its gaps spread evenly over them, more first. 0: one
            gap a pass.

    Exact: no: the order depends on the laws.
    Reduces to: confidence, greedy, for a vocabulary of two tokens.
    Source: Ye et al., Dream 7B (2025).
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_pace
    enter_block = new_pace
    unexercised = unexercised_by_steps

    def choose_edit(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        """Fill the gaps of lowest entropy, up to the pass's quota.

        Args:
            state: Gaps of the block at its begin, and its passes so far.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        # Scores are sorted from the highest: the lowest entropy has the highest negative.
        chosen = best_indices(
            -look.entropy_R, bounded_pass_quota(state, self.steps, len(look.rows))
        )
        return look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen}), (
            state[0],
            state[1] + 1,
        )
