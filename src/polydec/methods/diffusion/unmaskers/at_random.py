"""Gaps in random order (MDLM's sampler, one gap at a time: first hitting)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.states import new_pace, no_pace, unexercised_by_steps
from polydec.methods.diffusion.loop.types import Pace, UnmaskerView, bounded_pass_quota


@dataclass(frozen=True)
class AtRandomUnmasker:
    """Fills gaps that are drawn at random, whatever their laws.

    Attributes:
        steps: Passes that a block is given, its gaps spread evenly over them, more first. 0: one
            gap a pass.

    Exact: one gap a pass gives a draw from the model's any-order law, as MDLM's ancestral sampler
    does.
    Reduces to: left_to_right, in law, where conditionals are consistent and one gap is filled a
    pass.
    Source: Sahoo et al., MDLM (2024); Zheng et al., first-hitting sampling (2024).
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
        """Fill gaps of the block that are drawn uniformly.

        Args:
            state: Gaps of the block at its begin, and its passes so far.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        even_R = torch.ones(len(look.rows), dtype=torch.float64)
        chosen = rng.child_stream("order", look.step).without_replacement(
            even_R, bounded_pass_quota(state, self.steps, len(look.rows))
        )
        # Only chosen rows draw a token: the order does not depend on what would be drawn.
        return look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen}), (
            state[0],
            state[1] + 1,
        )
