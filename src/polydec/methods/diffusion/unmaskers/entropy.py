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
    """Gaps are ranked by the entropy of the model's own law, unshaped.

    steps: passes that a block is given, its gaps spread evenly over them, more first (0: one gap a pass).

    Exact: no: the order depends on the laws.
    Reduces to: confidence, greedy, for a vocabulary of two tokens.
    Source: Ye et al., Dream 7B (2025).
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start = no_pace
    enter = new_pace
    unexercised = unexercised_by_steps

    def choose(self, state: Pace, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Pace]:
        look = look.inside()
        chosen = best_indices(
            -look.entropy_R, bounded_pass_quota(state, self.steps, len(look.rows))
        )
        return look.edit(chosen, {i: look.token(i, rng) for i in chosen}), (state[0], state[1] + 1)
