"""What stands near a sure token needs less confidence (LocalLeap)."""

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
class LocalLeapUnmasker:
    """Writes sure tokens, and near them also tokens that are less sure.

    A token is drawn for every gap of the block. Those of at least `threshold` are anchors. Written
    are the surest one, the anchors, and what lies at most `radius` positions from an anchor and has
    at least `relaxed`. A token that is written so is no anchor in the same pass, and neither are
    known tokens.

    Attributes:
        threshold: Probability of an anchor.
        relaxed: Probability that is enough near an anchor.
        radius: Positions to either side of an anchor that are near, at least 0.

    Exact: no.
    Reduces to: threshold for radius = 0 or relaxed = threshold.
    Source: Kong et al., LocalLeap (2025).
    """

    threshold: float = 0.9
    relaxed: float = 0.75
    radius: int = 4
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness
    start_state = no_state
    enter_block = still_none

    def choose_edit(self, state: None, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, None]:
        """Write the anchors, what is sure enough near them, and the surest token.

        Args:
            state: None.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look, tokens, sure_R = draw_block_tokens(look, rng)
        # Anchors come from this pass alone: tokens that relax the bound must be sure now.
        anchors = [i for i, c in enumerate(sure_R.tolist()) if c >= self.threshold]
        near = {
            i
            for i, r in enumerate(look.rows)
            if any(abs(r - look.rows[a]) <= self.radius for a in anchors)
        }
        # The surest token in any case, the anchors, and what the relaxed bound admits near them.
        chosen = {
            *best_indices(sure_R, 1),
            *anchors,
            *(i for i in near if float(sure_R[i]) >= self.relaxed),
        }
        return look.fill_edit(sorted(chosen), tokens), None
