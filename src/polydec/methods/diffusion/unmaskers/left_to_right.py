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
    """The leftmost gaps are filled.

    steps: passes that a block is given, its gaps spread evenly over them, more first (0: one gap a pass).

    Exact: one gap a pass gives a draw from the model's law in this order.
    Reduces to: any order in blocks of one position.
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    start = no_pace
    enter = new_pace
    unexercised = unexercised_by_steps

    @property
    def exactness(self) -> Exactness:
        if self.steps:
            return Exactness.APPROXIMATE
        return Exactness.LAW

    def choose(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        look = look.inside()
        chosen = range(bounded_pass_quota(state, self.steps, len(look.rows)))
        return look.edit(chosen, {i: look.token(i, rng) for i in chosen}), (state[0], state[1] + 1)
