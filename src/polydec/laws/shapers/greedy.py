"""Greedy: the likeliest token and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.law import one_hot
from polydec.core.types import RowDetail


@dataclass(frozen=True)
class GreedyRule:
    """All weight on the likeliest token, the lowest id on a tie. As the last shaper it makes a law
    that is known without a row where nothing before it can move the argmax.

    Reduces to: top-k with k = 1 and the limit of temperature 0, both without ties.
    """

    reads: ClassVar[RowDetail] = RowDetail.ARGMAX
    keeps_argmax: ClassVar[bool] = True

    def start_state(self, prompt: Sequence[int]) -> None:
        return None

    def next_state(self, state: None, token: int) -> None:
        """Return None: this rule does not depend on the text before a token.

        Args:
            state: None.
            token: Token id that follows; not read.

        Returns:
            None.
        """
        return None

    def shape_law(self, state: None, logw_V: Tensor) -> Tensor:
        """Give all weight to the likeliest token, the lowest id on a tie.

        Args:
            state: None.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            0 at that token and -inf elsewhere, shape ``[V]``.
        """
        return one_hot(int(logw_V.argmax()), logw_V)
