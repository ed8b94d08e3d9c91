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
    """A filter looks at the confidences of all positions of a block (where a token stands
    `UnmaskerView.written`, or 1 where nobody asked; 1 behind its end) and says of each how likely
    its likeliest token is the final one. Written are the surest token, and those of which it says
    more than `threshold`. Blocks are as long as the filter's input, or shorter.

    threshold: 0 to 1; at 1 only the surest is written.

    Exact: no.
    Reduces to: confidence, one a pass, at threshold 1.
    Source: Bao et al., Learning to parallel (Learn2PD, 2025); there known positions show the model's confidence (`written`).
    """

    filter: ConfidenceFilter
    threshold: float = 0.96
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start = no_state
    enter = still_none

    def choose(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        look, tokens, sure_R = draw_block_tokens(look, rng)
        first = look.block.start
        size = self.filter.size
        inside = [i for i, r in enumerate(look.rows) if r - first < size]
        sure_B = torch.ones(size, dtype=torch.float32)
        for r, sure in look.written.items():
            if r - first < size:
                sure_B[r - first] = sure
        for i in inside:
            sure_B[look.rows[i] - first] = float(sure_R[i])
        right_B = self.filter(sure_B)
        chosen = {
            *best_indices(sure_R, 1),
            *(i for i in inside if float(right_B[look.rows[i] - first]) > self.threshold),
        }
        return look.edit(sorted(chosen), tokens), None
