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
    """Fills every gap of the block whose law is clear, and the clearest in any case.

    Attributes:
        threshold: Most nats of the model's own law, unshaped. Below 0 only the clearest gap is
            filled.

    Exact: no.
    Reduces to: entropy, one a pass, for a threshold below 0; one pass a block at log V.
    Source: Chen et al., dParallel (2025).
    """

    threshold: float = 0.45
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_state
    enter_block = still_none

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Fill every gap whose law is clear enough.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        nats_R = look.entropy_R
        chosen = sorted(
            {
                *best_indices(-nats_R, 1),
                *(i for i, h in enumerate(nats_R.tolist()) if h <= self.threshold),
            }
        )
        return look.fill_edit(chosen, {i: look.draw_token(i, rng) for i in chosen}), None
