"""Tokens that are the likeliest in two passes after each other (CCD, as its authors released it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.states import approximate_exactness
from polydec.methods.diffusion.loop.types import UnmaskerView, best_indices

State = tuple[Mapping[int, int], int, int]
"""Of the surest gaps of the pass before the likeliest token; passes of this block so far; gaps at its begin."""


@dataclass(frozen=True)
class AgreementUnmasker:
    """Compares the surest gaps with those of the pass before. Where the surest of all was among them, every gap that is in both
    sets with the same likeliest token is written; else the surest alone.

    warmup: passes of a block that compare one gap; each later one compares one more, up to `most`, and two once a tenth of the
    block is left; count: of the gaps that agree so many are written at most, the surest (0: all), as in the authors' uniform
    mode.

    Exact: no.
    Reduces to: confidence, one a pass, for most = 1.
    Source: Chen et al., Beyond confidence (2025), the released code; there a warm-up is counted over the whole canvas.
    """

    warmup: int = 5
    most: int = 5
    count: int = 0
    everywhere: ClassVar[bool] = False
    exactness = approximate_exactness

    def start(self, canvas: Canvas) -> State:
        return {}, 0, 0

    def enter(self, state: State, count: int) -> State:
        return {}, 0, count

    def choose(self, state: State, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, State]:
        look, (before, step, count) = look.inside(), state
        tokens = look.tokens(rng)
        likeliest = look.logp_RV.argmax(-1).tolist()
        order = best_indices(look.confidence(tokens), len(look.rows))
        size = self._size(step, len(look.rows), count)
        chosen = order[:1]
        if look.rows[order[0]] in before:
            agreed = [i for i in order[:size] if before.get(look.rows[i]) == likeliest[i]]
            chosen = agreed[: self.count or None] or chosen
        left = [i for i in order if i not in chosen][:size]
        return look.edit(chosen, tokens), (
            {look.rows[i]: likeliest[i] for i in left},
            step + 1,
            count,
        )

    def _size(self, step: int, left: int, count: int) -> int:
        """How many gaps are compared."""
        if step >= self.warmup and left * 10 <= count:
            return min(2, self.most)
        return max(1, min(self.most, step - self.warmup + 2))
