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
    """The threshold rule over logits to which alpha log(1 + credit) is added. In every pass each gap's likeliest token, of
    probability q, gains q ** gamma; what was there before is multiplied by beta first. A block begins without credits.

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

    def start(self, canvas: Canvas) -> Credits:
        return {}

    def enter(self, state: Credits, count: int) -> Credits:
        return {}

    def choose(self, state: Credits, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, Credits]:
        look = look.inside()
        credits = {r: self._gained(state.get(r, {}), look, i) for i, r in enumerate(look.rows)}
        logw_RV = look.logw_RV.clone()
        for i, r in enumerate(look.rows):
            for token, credit in credits[r].items():
                logw_RV[i, token] += self.alpha * log1p(credit)
        look = replace(look, logw_RV=logw_RV)
        tokens = look.tokens(rng)
        sure_R = look.confidence(tokens)
        chosen = surest_gaps(sure_R, self.threshold)
        return look.edit(sorted(chosen), tokens), credits

    def _gained(
        self, before: Mapping[int, float], look: UnmaskerView, i: int
    ) -> Mapping[int, float]:
        """A gap's credits with what this pass adds."""
        out = {token: self.beta * credit for token, credit in before.items()}
        likeliest = int(look.logp_RV[i].argmax())
        out[likeliest] = (
            out.get(likeliest, 0.0) + float(look.logp_RV[i, likeliest].exp()) ** self.gamma
        )
        return out
