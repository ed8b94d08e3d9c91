"""Next tokens behind a text with holes: some of the input is masked, and no target is (MEAP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from polydec.base.errors import RequestError
from polydec.lab.train.data import END
from polydec.lab.train.objectives.protocols import PlainStudent, cross_entropy, rows_of

MASK = "<|mask|>"


@dataclass(frozen=True)
class MeapObjective(PlainStudent):
    """Some inputs are masked, and every next token is learned as before.

    Of each row's n inputs max(1, floor(share n)) are replaced by MASK, drawn anew for every row:
    never the first, which is the mark of a beginning, never the last, and no end of a text.

    Attributes:
        share: Share of the inputs that is masked, 0 (nothing) to 0.9; published: 0.15.

    Reduces to: `NextToken` at share 0, to the bit.
    Source: Zhuang et al., "Mask-enhanced autoregressive prediction: pay less attention to learn
    more" (2025), its pre-training; `MeapAnswers` is its fine-tuning.
    """

    share: float = 0.15
    marks = (MASK,)
    ends = ()

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.9:
            raise RequestError(f"mask is {self.share}: it must lie in 0 (nothing) to 0.9")

    def batch_loss(
        self,
        network: nn.Module,
        batch_BT: Tensor,
        ids: Mapping[str, int],
        rng: np.random.Generator,
        done: float = 0.0,
    ) -> Tensor:
        """The mean negative log-likelihood of every next token after masked inputs.

        Args:
            network: The student.
            batch_BT: Token ids, BEGIN first, shape ``[B, T]``.
            ids: Ids of the special tokens, by name.
            rng: Source of the masks; it is advanced.
            done: Not used: all steps are alike. Default 0.

        Returns:
            Nats a token.
        """
        # Only the inputs are masked; the labels are the text itself.
        inputs_BT = rows_of(
            [
                mask_random_inputs(row, self.share, ids[MASK], ids[END], rng)
                for row in batch_BT[:, :-1].numpy()
            ]
        )
        # Positions at masks predict the next token too.
        return cross_entropy(network, inputs_BT, batch_BT[:, 1:])  # pyright: ignore[reportArgumentType]


def mask_random_inputs(
    inputs_T: np.ndarray, share: float, mask: int, end: int, rng: np.random.Generator
) -> np.ndarray:
    """Mask some inputs of a row.

    Args:
        inputs_T: Token ids, shape ``[T]``.
        share: Share of the inputs that is masked; 0: none.
        mask: Id of the mask.
        end: Id of the end of a text, which is never masked.
        rng: Source of the places; it is advanced.

    Returns:
        Token ids with `mask` at max(1, floor(share T)) places, or at all that may be masked where
        these are fewer.
    """
    # Neither the first input nor the last.
    may = np.flatnonzero(inputs_T[1:-1] != end) + 1
    # At least one input is masked, however short the row.
    if share:
        count = min(len(may), max(1, int(share * len(inputs_T))))
    else:
        count = 0
    out_T = inputs_T.copy()
    out_T[rng.choice(may, count, replace=False)] = mask
    return out_T
