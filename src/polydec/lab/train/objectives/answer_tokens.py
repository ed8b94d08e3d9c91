"""Every token of an answer from its question and what stands before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polydec.lab.train.objectives.protocols import IGNORED, LearnedRow


@dataclass(frozen=True)
class AnswerTokens:
    """One row a pair: the tokens of the answer and its end are learned, and nothing of the question."""

    special_marks = ()

    def learned_rows(
        self,
        asked: Sequence[int],
        answer: Sequence[int],
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> list[LearnedRow]:
        """The pair as it is written.

        Args:
            asked: Token ids up to the answer.
            answer: Token ids of the answer and its end.
            ids: Not used.
            rng: Not used: nothing is drawn.

        Returns:
            One row.
        """
        # The last token of the question predicts the first of the answer.
        labels = (*[IGNORED] * (len(asked) - 1), *answer)
        return [LearnedRow((*asked, *answer[:-1]), labels)]
