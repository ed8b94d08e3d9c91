"""The surest tokens first (LLaDA's low-confidence remasking)."""

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
class ConfidenceUnmasker:
    """Draws a token for every gap, and writes those that the model finds likeliest.

    Confidence is the model's own probability, unshaped.

    Attributes:
        steps: Passes that a block is given, its gaps spread evenly over them, more first. 0: one
            gap a pass.

    Exact: no: the order depends on what was drawn; one a pass, each single conditional is the
    model's.
    Reduces to: at_random where all confidences are equal, but for the ties; one-shot argmax for
    steps = 1 without chance.
    Source: Nie et al., LLaDA (2025); Chang et al., MaskGIT (2022), whose order has noise that is
    left out here.
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_pace
    enter_block = new_pace
    unexercised = unexercised_by_steps

    def choose_edit(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        """Write the drawn tokens of highest probability, up to the pass's quota.

        Args:
            state: Gaps of the block at its begin, and its passes so far.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        # Every gap draws a token; those that are not written now are drawn anew in the next pass.
        tokens = look.draw_tokens(rng)
        chosen = best_indices(
            look.token_confidence(tokens), bounded_pass_quota(state, self.steps, len(look.rows))
        )
        return look.fill_edit(chosen, tokens), (state[0], state[1] + 1)
