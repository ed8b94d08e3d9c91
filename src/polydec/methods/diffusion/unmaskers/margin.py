"""The gaps whose best two tokens lie farthest apart first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import Edit
from polydec.methods.diffusion.loop.states import (
    approximate,
    new_pace,
    no_pace,
    unexercised_by_steps,
)
from polydec.methods.diffusion.loop.types import Look, Pace, best, due


@dataclass(frozen=True)
class Margin:
    """Gaps are ranked by the model's highest probability less its second highest (top-k margin).

    steps: passes that a block is given, its gaps spread evenly over them, more first (0: one gap a pass).

    Exact: no, but for a vocabulary of one token: the order depends on the laws.
    Reduces to: confidence, greedy, for a vocabulary of two tokens.
    Source: Kim et al., Train for the worst, plan for the best (2025).
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate
    start, enter = no_pace, new_pace
    unexercised = unexercised_by_steps

    def choose(self, state: Pace, look: Look, rng: Rng) -> tuple[Edit, Pace]:
        look = look.inside()
        two_R2 = look.logp_RV.exp().topk(2, dim=-1).values
        chosen = best(two_R2[:, 0] - two_R2[:, 1], due(state, self.steps, len(look.rows)))
        return look.edit(chosen, {i: look.token(i, rng) for i in chosen}), (state[0], state[1] + 1)
