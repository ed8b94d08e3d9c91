"""A small trained net says which tokens are right already (Learn2PD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import (
    approximate_exactness,
    draw_block_tokens,
    no_state,
    still_none,
)
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices
from polydec.models.learned.kinds.filter import ConfidenceFilter


@dataclass(frozen=True)
class FilteredUnmasker:
    """Writes the tokens that a small trained network finds final.

    The filter reads the confidences of all positions of a block (where a token stands
    `UnmaskerView.written`, or 1 where nobody asked; 1 after its end). It says of each how likely
    its likeliest token is the final one. Written are the surest token, and those of which it says
    more than `threshold`. Blocks are as long as the filter's input, or shorter.

    Attributes:
        filter: The trained network.
        threshold: Probability, 0 to 1. At 1 only the surest token is written.

    Exact: no.
    Reduces to: confidence, one a pass, at threshold 1.
    Source: Bao et al., Learning to parallel (Learn2PD, 2025); there known positions show the
    model's confidence (`written`).
    """

    filter: ConfidenceFilter
    threshold: float = 0.96
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_state
    enter_block = still_none

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Write the tokens that the filter accepts, and the surest one.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, tokens, sure_R = draw_block_tokens(look, rng)
        first = look.block.start
        size = self.filter.size
        inside = [i for i, r in enumerate(look.rows) if r - first < size]
        # The filter's input, B: one confidence for each position of a block, 1 where nothing is
        # known.
        sure_B = torch.ones(size, dtype=torch.float32)
        for r, law in look.written.items():
            if r - first < size:
                sure_B[r - first] = law.sure
        for i in inside:
            sure_B[look.rows[i] - first] = float(sure_R[i])
        right_B = self.filter(sure_B)
        chosen = {
            *best_indices(sure_R, 1),
            *(i for i in inside if float(right_B[look.rows[i] - first]) > self.threshold),
        }
        return look.fill_edit(sorted(chosen), tokens), None
