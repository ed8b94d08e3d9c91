"""Ends of rows: a picture's layout says where its row ends, and no law is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF, one_hot
from polydec.core.types import RowDetail


@dataclass(frozen=True)
class RowEndRule:
    """Behind every `width` tokens of the answer stands `mark`, and nowhere else.

    width: at least 1; mark: a token id. Where nothing but the mark is left inside of a row, the row of
    the law stays as it was.

    Reduces to: the identity where the law says the mark at these places and nowhere else. Raises
    RequestError outside the range.
    Source: pictures with marks between their rows (Lumina-mGPT, Emu3), as Teng et al., "Accelerating
    auto-regressive text-to-image generation with training-free speculative Jacobi decoding" (2024),
    decode them: such tokens are written by a rule.
    """

    width: int
    mark: int
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise RequestError(f"width is {self.width}: a row has at least 1 token")
        if self.mark < 0:
            raise RequestError(f"mark is {self.mark}: ids are at least 0")

    def start_state(self, prompt: Sequence[int]) -> int:
        return 0

    def next_state(self, state: int, token: int) -> int:
        """Go on by one token.

        Args:
            state: Tokens since the last end of a row.
            token: Token id that follows; not read.

        Returns:
            The count behind it.
        """
        return (state + 1) % (self.width + 1)

    def ends_row(self, written: int) -> bool:
        """Whether the next token is the mark.

        Args:
            written: Tokens of the answer so far.

        Returns:
            Whether a row is full.
        """
        return written % (self.width + 1) == self.width

    def shape_law(self, state: int, logw_V: Tensor) -> Tensor:
        """Leave the mark alone where a row is full, and no mark elsewhere.

        Args:
            state: Tokens since the last end of a row.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``.
        """
        if self.ends_row(state):
            return one_hot(self.mark, logw_V)
        out_V = logw_V.clone()
        out_V[self.mark] = NEG_INF
        return out_V if float(out_V.max()) > NEG_INF else logw_V
