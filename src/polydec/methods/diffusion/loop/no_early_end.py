"""A canvas on which no end may stand before a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.law import NEG_INF
from polydec.core.types import TokenVocabulary


@dataclass(frozen=True)
class NoEarlyEndDenoiser:
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
    def vocab(self) -> TokenVocabulary:
        return self.denoiser.vocab

    @property
    def block(self) -> int:
        return self.denoiser.block

    @property
    def boundary(self) -> int | None:
        return self.denoiser.boundary

    @property
    def context(self) -> int:
        return self.denoiser.context

    def embed(self, canvas: Sequence[int | None]) -> Tensor:
        return self.denoiser.embed(canvas)

    def laws(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        return self.bent(self.denoiser.laws(state_RH, rows), rows)

    def bent(self, logw_RV: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-weights of these positions without early ends."""
        early = [i for i, r in enumerate(rows) if r < self.first]
        if early and self.ends:
            logw_RV = logw_RV.clone()
            for x in self.ends:
                logw_RV[early, x] = NEG_INF
        return logw_RV

    def open(self, length: int, prompt: int = 0) -> NoEarlyEndBoard:
        return NoEarlyEndBoard(self, self.denoiser.open(length, prompt))


class NoEarlyEndBoard:
    """A board of the denoiser, without early ends."""

    def __init__(self, model: NoEarlyEndDenoiser, board: CanvasSession) -> None:
        self._model = model
        self._board = board

    async def score(self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]) -> Tensor:
        return self._model.bent(await self._board.score(canvas, rows, feed), rows)

    async def read(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        return await self._board.read(canvas, feed)

    def fork(self) -> NoEarlyEndBoard:
        return NoEarlyEndBoard(self._model, self._board.fork())

    def close(self) -> None:
        self._board.close()
