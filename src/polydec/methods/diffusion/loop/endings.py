"""Where an answer ends before its end is written (Learn2PD's end-of-text prediction)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polydec.core.types import TextEdit
from polydec.methods.diffusion.loop.types import UnmaskerView


@dataclass(frozen=True)
class FullLengthEnding:
    """Nowhere: the canvas keeps its length.

    Exact: changes no law.
    Reduces to: itself.
    """

    everywhere: ClassVar[bool] = False

    @property
    def spare(self) -> int:
        return 0

    def find(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        return None


@dataclass(frozen=True)
class PredictedEnding:
    """At the first end that this pass writes; else at the surest gap whose likeliest token is an end, where its probability
    reaches `least`, or every known gap behind it says the same. What lies behind is cut off and costs nothing any more.

    least: 0: a mere prediction will do, as in the released code. spare: gaps behind it that stay, for models that never saw a
    canvas end where its text does; 0 as published.

    Exact: no: the canvas is another one from then on.
    Reduces to: an end that was written cuts the canvas and nothing else does, where no gap ever predicts one.
    Source: Bao et al., Learning to parallel (2025), end-of-text prediction; there `least` is 0.
    """

    least: float = 0.9
    spare: int = 0
    everywhere: ClassVar[bool] = True

    def find(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        written = [p for p, x in edit.write if x in look.ends]
        if written:
            return min(written)
        if not look.ends:
            return None
        stands = next(
            (i for i in range(look.block.start, len(look.canvas)) if look.canvas[i] in look.ends),
            len(look.canvas),
        )
        filled = {p for p, _ in edit.write}
        likeliest = look.likeliest
        ends = [
            i
            for i, x in enumerate(likeliest)
            if x in look.ends and look.rows[i] not in filled and look.rows[i] < stands
        ]
        if not ends:
            return None
        sure_R = look.confidence(likeliest)
        best = max(ends, key=lambda i: (float(sure_R[i]), -i))
        agreed = look.complete and all(
            x in look.ends for r, x in zip(look.rows[best:], likeliest[best:]) if r < stands
        )
        if agreed or float(sure_R[best]) >= self.least:
            return look.rows[best]
        return None
