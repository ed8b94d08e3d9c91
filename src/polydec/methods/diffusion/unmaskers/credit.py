"""A token that stays the likeliest gains credit, and needs less confidence (CreditDecoding)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log1p
from typing import ClassVar

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness, surest_gaps
from polydec.methods.diffusion.loop.types import UnmaskerView

Credits = Mapping[int, Mapping[int, float]]
"""By position, the credit of each token that was the likeliest there."""


@dataclass(frozen=True)
class CreditUnmasker:
    """The threshold rule, with credit for tokens that stay the likeliest.

    alpha log(1 + credit) is added to the logits. In every pass each gap's likeliest token, of
    probability q, gains q ** gamma; the credits of earlier passes are multiplied by beta first. A
    block begins without credits.

    Attributes:
        threshold: Probability, credit counted in, from which a token is written; the surest is in
            any case.
        alpha: Weight of the credit's logarithm in the logits.
        gamma: Exponent of the probability that is gained; below 1 unsure tokens gain more.
        beta: Share of the credits that the next pass keeps, 0 to 1.

    Exact: no.
    Reduces to: threshold for alpha = 0.
    Source: Wang et al., CreditDecoding (2025).
    """

    threshold: float = 0.9
    alpha: float = 0.7
    gamma: float = 0.2
    beta: float = 0.8
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness

    def start_state(self, canvas: Canvas) -> Credits:
        return {}

    def enter_block(self, state: Credits, count: int) -> Credits:
        """Begin a block without credits.

        Args:
            state: Credits of the block before; not needed.
            count: Gaps of the block that begins.

        Returns:
            The state with which the block begins.
        """
        return {}

    def choose_edit(self, state: Credits, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Credits]:
        """Add this pass's credits, then write the tokens that reach the threshold with them.

        Args:
            state: Credit of each token that was the likeliest at a gap, by position.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer; draws are named by position and pass.

        Returns:
            The tokens to write, and the state after this pass.
        """
        look = look.inside_block()
        # Only gaps of the block keep credits: those of written positions are dropped here.
        credits = {r: self._gained(state.get(r, {}), look, i) for i, r in enumerate(look.rows)}
        # Both the draw and the confidence use the raised logits.
        logw_RV = look.logw_RV.clone()
        for i, r in enumerate(look.rows):
            for token, credit in credits[r].items():
                logw_RV[i, token] += self.alpha * log1p(credit)
        look = replace(look, logw_RV=logw_RV)
        tokens = look.draw_tokens(rng)
        sure_R = look.token_confidence(tokens)
        chosen = surest_gaps(sure_R, self.threshold)
        return look.fill_edit(sorted(chosen), tokens), credits

    def _gained(
        self, before: Mapping[int, float], look: UnmaskerView, i: int
    ) -> Mapping[int, float]:
        """A gap's credits with what this pass adds."""
        # Old credits decay before the gain is added, as published.
        out = {token: self.beta * credit for token, credit in before.items()}
        # The gain comes from the model's own law, without credit: else credit would feed itself.
        likeliest = int(look.logp_RV[i].argmax())
        out[likeliest] = (
            out.get(likeliest, 0.0) + float(look.logp_RV[i, likeliest].exp()) ** self.gamma
        )
        return out
