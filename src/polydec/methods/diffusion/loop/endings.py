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

    def find_end(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        """Return None: no end is predicted.

        Args:
            look: Laws of the pass, before its edit.
            edit: Tokens that the pass writes.
        """
        return None


@dataclass(frozen=True)
class PredictedEnding:
    """Predicts the answer's end from the laws of a pass, and cuts the canvas there.

    The end lies at the first end (EOS, a stop id) that this pass writes. Else it lies at the surest
    gap whose likeliest token is an end, where its probability reaches `least`, or every known gap
    after it predicts an end as well. What lies after it is cut off and costs nothing from then on.

    Attributes:
        least: Probability, 0 to 1, that a predicted end needs. 0: any prediction will do, as in the
            released code.
        spare: Gaps after the end that stay on the canvas, for models that never saw a canvas end
            where its text does; 0 as published.

    Exact: no: the canvas is another one from then on.
    Reduces to: an end that was written cuts the canvas and nothing else does, where no gap ever
    predicts one.
    Source: Bao et al., Learning to parallel (2025), end-of-text prediction; there `least` is 0.
    """

    least: float = 0.9
    spare: int = 0
    everywhere: ClassVar[bool] = True

    def find_end(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        """Return the position of the answer's predicted last token.

        Args:
            look: Laws of the pass, before its edit; they cover all gaps, as `everywhere` asks.
            edit: Tokens that the pass writes.

        Returns:
            A position of the canvas, or None where no end is sure enough.
        """
        # An end that is written now is certain: no prediction is needed.
        written = [p for p, x in edit.write if x in look.ends]
        if written:
            return min(written)
        if not look.ends:
            return None
        # Gaps after an end that stands already are no part of the answer.
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
        # Of the gaps that predict an end the surest one counts, the first of them on a tie.
        sure_R = look.token_confidence(likeliest)
        best = max(ends, key=lambda i: (float(sure_R[i]), -i))
        # A weak prediction is enough where all gaps after it agree: the model sees only padding
        # there.
        agreed = look.complete and all(
            x in look.ends for r, x in zip(look.rows[best:], likeliest[best:]) if r < stands
        )
        if agreed or float(sure_R[best]) >= self.least:
            return look.rows[best]
        return None
