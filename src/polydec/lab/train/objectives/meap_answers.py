"""A second copy of each pair, in whose answer some tokens are masked and asked for (MEAP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polydec.base.errors import RequestError
from polydec.lab.train.objectives.answer_tokens import AnswerTokens
from polydec.lab.train.objectives.meap import MASK
from polydec.lab.train.objectives.protocols import IGNORED, LearnedRow


@dataclass(frozen=True)
class MeapAnswers:
    """Each pair as it is written, and once more with holes in its answer.

    Of an answer of n tokens, its end left out, the second copy has max(1, floor(share n)) masked,
    drawn anew whenever the pair is learned; only the masked tokens are learned of it, each from the
    state before it. An answer of `least` tokens or fewer has no second copy.

    Attributes:
        share: Share of an answer that is masked, 0 (no second copy) to 0.9; published: 0.1.
        least: Tokens above which an answer has a second copy; published: 50.

    Reduces to: `AnswerTokens` at share 0, to the bit.
    Source: Zhuang et al., "Mask-enhanced autoregressive prediction: pay less attention to learn
    more" (2025), its fine-tuning. Their program draws the masks once for all epochs.
    """

    share: float = 0.1
    least: int = 50
    special_marks = (MASK,)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.9:
            raise RequestError(f"mask is {self.share}: it must lie in 0 (nothing) to 0.9")
        if self.least < 0:
            raise RequestError(f"second is {self.least}: it must be at least 0")

    def learned_rows(
        self,
        asked: Sequence[int],
        answer: Sequence[int],
        ids: Mapping[str, int],
        rng: np.random.Generator,
    ) -> list[LearnedRow]:
        """The pair, and its masked copy where the answer is long enough.

        Args:
            asked: Token ids up to the answer.
            answer: Token ids of the answer and its end.
            ids: Ids of the special tokens, by name.
            rng: Source of the masks; it is advanced.

        Returns:
            One row or two.
        """
        # The pair itself is learned as without masks.
        rows = AnswerTokens().learned_rows(asked, answer, ids, rng)
        size = len(answer) - 1  # the end is neither masked nor counted
        if self.share and size > self.least:
            # At least one token, or the copy would teach nothing.
            count = max(1, int(self.share * size))
            at = len(asked) + rng.choice(size, count, replace=False)
            rows.append(masked_copy(rows[0], at, ids[MASK]))
        return rows


def masked_copy(row: LearnedRow, at: np.ndarray, mask: int) -> LearnedRow:
    """Mask some inputs of a row, and learn these alone.

    Args:
        row: A row, in which each label is the next token.
        at: Places of the inputs, 1 or more each.
        mask: Id of the mask.

    Returns:
        A row of the same length.
    """
    tokens = np.array(row.token_ids)
    labels = np.full(len(tokens), IGNORED)
    # A token is predicted by the state before it, as in the row itself.
    labels[at - 1] = tokens[at]
    # Labels are taken first: the mask overwrites what they are read from.
    tokens[at] = mask
    return LearnedRow(tuple(tokens.tolist()), tuple(labels.tolist()))
