"""A canvas on which no end may stand before a position."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.law import NEG_INF
from polydec.core.types import Vocab
from polydec.families.diffusion.protocols import Board, Denoiser
from polydec.families.diffusion.types import Canvas


@dataclass(frozen=True)
class NoEarlyEnd:
    """The denoiser's laws without `ends` at positions before `first`; confidence is of what is left.

    Exact: law, of the model that is bent so.
    Reduces to: `denoiser` for no ends, or first = 0.
    """
    denoiser: Denoiser
    ends: frozenset[int]
    first: int
    family: ClassVar[str] = "diffusion"
    layers: ClassVar[int] = 0

    @property
    def vocab(self) -> Vocab:
        return self.denoiser.vocab

    @property
    def block(self) -> int:
        return self.denoiser.block

    @property
    def context(self) -> int:
        return self.denoiser.context

    def open(self, length: int, prompt: int = 0) -> NoEarlyEndBoard:
        return NoEarlyEndBoard(self, self.denoiser.open(length, prompt))


class NoEarlyEndBoard:
    """A board of the denoiser, without early ends."""
    def __init__(self, model: NoEarlyEnd, board: Board) -> None:
        self._model, self._board = model, board

    async def score(self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]) -> Tensor:
        logw_RV = await self._board.score(canvas, rows, feed)
        early = [i for i, r in enumerate(rows) if r < self._model.first]
        if early and self._model.ends:
            logw_RV = logw_RV.clone()
            for x in self._model.ends:
                logw_RV[early, x] = NEG_INF
        return logw_RV

    def close(self) -> None:
        self._board.close()
