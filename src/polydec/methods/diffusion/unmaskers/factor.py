"""As many tokens as are likely right together (Fast-dLLM's factor rule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import (
    approximate_exactness,
    draw_block_tokens,
    no_state,
    still_none,
)
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices


@dataclass(frozen=True)
class FactorUnmasker:
    """Writes as many tokens as are likely to be right together.

    A token is drawn for every gap of the block. Of these, surest first, as many are written as have
    (j + 1)(1 - c_j) <= factor one after another, c_j being the j-th highest confidence; at least
    one.

    Attributes:
        factor: Risk that is taken, at least 0. At 1 the tokens of a greedy pass are the likeliest
            ones together; above that more is risked.

    Exact: no; see factor = 1.
    Reduces to: confidence, one a pass, for factor = 0 unless confidences are 1.
    Source: Wu et al., Fast-dLLM (2025).
    """

    factor: float = 1.0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_state
    enter_block = still_none

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Write the longest run of the surest tokens that keeps the bound.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, tokens, sure_R = draw_block_tokens(look, rng)
        order = best_indices(sure_R, len(look.rows))
        falls = (n for n, i in enumerate(order) if float(sure_R[i]) < 1 - self.factor / (n + 2))
        return look.fill_edit(order[: max(1, next(falls, len(order)))], tokens), None
