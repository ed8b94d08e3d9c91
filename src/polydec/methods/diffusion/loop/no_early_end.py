"""A masked-diffusion law without ends before a position (a least length of the answer)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.delegating import DelegatingDenoiser
from polydec.core.law import NEG_INF


@dataclass(frozen=True)
class NoEarlyEndDenoiser(DelegatingDenoiser):
    """The laws of `denoiser`, where no end may stand before a position.

    Confidence is measured on what is left, renormalised.

    Attributes:
        denoiser: Model whose laws these are.
        ends: Token ids that end an answer.
        first: First position of the canvas at which an end may stand.

    Exact: law, of the model that is bent so.
    Reduces to: `denoiser` for no ends, or first = 0.
    """

    denoiser: Denoiser
    ends: frozenset[int]
    first: int

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Return log-weights at some positions from their states.

        Args:
            state_RH: States of the positions, shape ``[R, H]``.
            rows: Positions, ascending.

        Returns:
            Log-weights without early ends, shape ``[R, V]``.
        """
        return self.bend_rows(self.denoiser.laws_of_states(state_RH, rows), rows)

    def bend_rows(self, logw_RV: Tensor, rows: Sequence[int]) -> Tensor:
        """Return log-weights with -inf at ends that would come too early.

        Args:
            logw_RV: Log-weights of the model, shape ``[R, V]``; they are not written to.
            rows: Positions of the rows, ascending.
        """
        # Only rows before the bound change: a pass without such rows costs nothing.
        early = [i for i, r in enumerate(rows) if r < self.first]
        if early and self.ends:
            # The model's rows may be shared: they are copied before ends are masked.
            logw_RV = logw_RV.clone()
            for x in self.ends:
                logw_RV[early, x] = NEG_INF
        return logw_RV

    def open_canvas(self, length: int, prompt: int = 0) -> NoEarlyEndBoard:
        """Open a canvas session.

        Args:
            length: Positions of the canvas.
            prompt: How many of the first positions are the prompt. Default 0.

        Raises:
            PolydecError: The canvas is longer than the model's context.
        """
        return NoEarlyEndBoard(self, self.denoiser.open_canvas(length, prompt))


class NoEarlyEndBoard:
    """A canvas session of the denoiser, without early ends."""

    def __init__(self, model: NoEarlyEndDenoiser, board: CanvasSession) -> None:
        self._model = model
        self._board = board

    async def score_canvas(
        self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Run a pass, and return the log-weights without early ends.

        Args:
            canvas: Prompt and answer; None is a gap.
            rows: Positions whose laws are wanted, ascending, each in `feed`.
            feed: Positions that run, ascending.

        Returns:
            Log-weights, shape ``[R, V]``, float64.
        """
        return self._model.bend_rows(await self._board.score_canvas(canvas, rows, feed), rows)

    async def read_canvas(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """Run a pass, and return its states, which carry no law yet and so stay as they are.

        Args:
            canvas: Prompt and answer; None is a gap.
            feed: Positions that run, ascending.

        Returns:
            States of the positions of `feed`, shape ``[feed, H]``.
        """
        return await self._board.read_canvas(canvas, feed)

    def fork(self) -> NoEarlyEndBoard:
        return NoEarlyEndBoard(self._model, self._board.fork())

    def close(self) -> None:
        self._board.close()
