"""Every gap whose law is clear enough (dParallel's decoding rule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness, no_state, still_none
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices


@dataclass(frozen=True)
class EntropyThresholdUnmasker:
    """The gap of the block whose law has the lowest entropy is written, and every other of at most `threshold` nats.

    threshold: nats of the model's own law, unshaped; below 0 only the clearest is written.

    Exact: no.
    Reduces to: entropy, one a pass, for a threshold below 0; one pass a block at log V.
    Source: Chen et al., dParallel (2025).
    """

    threshold: float = 0.45
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start = no_state
    enter = still_none

    def choose(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        look = look.inside()
        nats_R = look.entropy_R
        chosen = sorted(
            {
                *best_indices(-nats_R, 1),
                *(i for i, h in enumerate(nats_R.tolist()) if h <= self.threshold),
            }
        )
        return look.edit(chosen, {i: look.token(i, rng) for i in chosen}), None
