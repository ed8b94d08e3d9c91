"""The surest tokens first (LLaDA's low-confidence remasking)."""

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
class Confidence:
    """A token is drawn for every gap; those that the model itself, unshaped, finds likeliest are written.

    steps: passes that a block is given, its gaps spread evenly over them, more first (0: one gap a pass).

    Exact: no: the order depends on what was drawn; one a pass, each single conditional is the model's.
    Reduces to: at_random where all confidences are equal, but for the ties; one-shot argmax for steps = 1 without chance.
    Source: Nie et al., LLaDA (2025); Chang et al., MaskGIT (2022), whose order has noise that is left out here.
    """

    steps: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate
    start, enter = no_pace, new_pace
    unexercised = unexercised_by_steps

    def choose(self, state: Pace, look: Look, rng: Rng) -> tuple[Edit, Pace]:
        look = look.inside()
        tokens = look.tokens(rng)
        chosen = best(look.confidence(tokens), due(state, self.steps, len(look.rows)))
        return look.edit(chosen, tokens), (state[0], state[1] + 1)
