"""Every token that the model is sure of (Fast-dLLM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import (
    ONE_A_PASS,
    approximate_exactness,
    draw_block_tokens,
    no_state,
    still_none,
    surest_gaps,
)
from polydec.methods.diffusion.loop.types import UnmaskerView


@dataclass(frozen=True)
class ThresholdUnmasker:
    """Draws a token for every gap of the block, and writes all that reach a confidence.

    The surest token is written in any case.

    Attributes:
        threshold: The model's own probability of a token, unshaped. Above 1 only the surest is
            written, at 0 all are.

    Exact: no. Greedy, n tokens of confidence above 1 - e are the likeliest ones together where (n +
    1) e <= 1.
    Reduces to: confidence, one a pass, for a threshold above 1; one pass a block at 0.
    Source: Wu et al., Fast-dLLM (2025).
    """

    threshold: float = 0.9
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_state
    enter_block = still_none

    @property
    def unexercised(self) -> Mapping[str, str]:
        if self.threshold > 1.0:
            return ONE_A_PASS
        return {}

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Write the tokens that reach the threshold, and the surest one.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, tokens, sure_R = draw_block_tokens(look, rng)
        # Confidence is that of the drawn token under the unshaped law.
        chosen = surest_gaps(sure_R, self.threshold)
        return look.fill_edit(sorted(chosen), tokens), None
