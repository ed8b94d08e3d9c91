"""Classifier-free guidance of a masked-diffusion model: the prompt's influence is made stronger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.delegating import DelegatingDenoiser
from polydec.core.effects import gather_coroutines
from polydec.core.law import NEG_INF, normalise_log_weights


@dataclass(frozen=True)
class PromptGuidedDenoiser(DelegatingDenoiser):
    """Guides the laws of a canvas by its prompt.

    log p = (1 + scale) log p(with the prompt) - scale log p(without it), normalised. "Without it"
    is the same canvas with gaps in the place of the prompt. Both run in the same pass.

    Attributes:
        denoiser: Model whose laws are guided.
        scale: Strength of the guidance, at least 0.
        growing: Passes of a canvas over which the strength grows to that, in equal steps from 0 in
            the first one. Default 0: it is the same in all.

    Exact: law, of the guided model.
    Reduces to: `denoiser` for scale = 0.
    Source: Nie et al., unsupervised classifier-free guidance for masked diffusion (2024); LLaDA's
    cfg_scale is this scale.
    """

    denoiser: Denoiser
    scale: float
    growing: int = 0

    def __post_init__(self) -> None:
        if not self.scale >= 0:
            raise RequestError(f"scale is {self.scale}: it must be at least 0")
        if self.growing < 0:
            raise RequestError(f"growing is {self.growing}: it must be at least 0")

    def strength_at(self, passes: int) -> float:
        """The strength of the guidance behind so many passes of a canvas."""
        if not self.growing:
            return self.scale
        # The first tokens decide how unlike pictures are, so they are hardly guided.
        return self.scale * min(1.0, passes / self.growing)

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        """Return the embeddings twice, for states with the prompt and for those without it."""
        # The states are doubled, so what is added to them must be, too.
        return self.denoiser.embed_canvas(canvas).repeat(1, 2)

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the guided log-weights at some positions from their states.

        Args:
            state_RH: States that `PromptGuidedBoard.read_canvas` gave, those with the prompt and those
                without it side by side, shape ``[R, 2 H]``.
            rows: Positions, ascending.

        Returns:
            Log-weights, shape ``[R, V]``.
        """
        # The board joined both states along the last axis.
        told_RH, untold_RH = state_RH.chunk(2, -1)
        return self.mix_laws(
            self.denoiser.laws_of_states(told_RH, rows),
            self.denoiser.laws_of_states(untold_RH, rows),
        )

    def mix_laws(self, told_RV: Tensor, untold_RV: Tensor, strength: float | None = None) -> Tensor:
        """Mix the laws with and without the prompt.

        Args:
            told_RV: Log-weights with the prompt, shape ``[R, V]``.
            untold_RV: Log-weights without it, shape ``[R, V]``.
            strength: Of the guidance. None: its scale.

        Returns:
            Log-weights, not normalised, shape ``[R, V]``.
        """
        # Normalised first: log-weights of two rows may differ by constants, which would not cancel.
        with_RV = normalise_log_weights(told_RV)
        without_RV = normalise_log_weights(untold_RV)
        scale = self.scale if strength is None else strength
        # A strength of 0 times a logarithm of 0 would be NaN.
        if not scale:
            return with_RV
        out_RV = (1 + scale) * with_RV - scale * without_RV
        # A token that the prompted law excludes stays excluded: -inf less -inf would be NaN.
        return out_RV.masked_fill(with_RV == NEG_INF, NEG_INF)

    def open_canvas(self, length: int, prompt: int = 0) -> PromptGuidedBoard:
        """Open the two canvas sessions of one answer.

        Args:
            length: Positions of the canvas.
            prompt: How many of the first positions are the prompt. Default 0.

        Raises:
            PolydecError: The canvas is longer than the model's context.
        """
        told, untold = (self.denoiser.open_canvas(length, prompt) for _ in range(2))
        return PromptGuidedBoard(self, prompt, told, untold)


class PromptGuidedBoard:
    """Two canvas sessions: one with the prompt, and one on which the prompt is gaps."""

    def __init__(
        self, model: PromptGuidedDenoiser, prompt: int, told: CanvasSession, untold: CanvasSession
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._told = told
        self._untold = untold
        self._passes = 0  # of this canvas so far

    async def score_canvas(
        self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Run both passes in one batch, and mix their laws.

        Args:
            canvas: Prompt and answer; None is a gap.
            rows: Positions whose laws are wanted, ascending, each in `feed`.
            feed: Positions that run, ascending.

        Returns:
            Log-weights, shape ``[R, V]``, float64.
        """
        # Both sessions score in one batch; the second sees gaps where the prompt stands.
        told_RV, untold_RV = await gather_coroutines(
            self._told.score_canvas(canvas, rows, feed),
            self._untold.score_canvas(self._blank(canvas), rows, feed),
        )
        strength = self._model.strength_at(self._passes)
        self._passes += 1
        return self._model.mix_laws(told_RV, untold_RV, strength)

    async def read_canvas(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """Run both passes, and return their states side by side.

        Args:
            canvas: Prompt and answer; None is a gap.
            feed: Positions that run, ascending.

        Returns:
            States with the prompt, then those without it, shape ``[feed, 2 H]``.
        """
        return torch.cat(
            await gather_coroutines(
                self._told.read_canvas(canvas, feed),
                self._untold.read_canvas(self._blank(canvas), feed),
            ),
            -1,
        )

    def _blank(self, canvas: Canvas) -> Canvas:
        return (*(None,) * self._prompt, *canvas[self._prompt :])

    def fork(self) -> PromptGuidedBoard:
        twin = PromptGuidedBoard(self._model, self._prompt, self._told.fork(), self._untold.fork())
        twin._passes = self._passes
        return twin

    def close(self) -> None:
        self._told.close()
        self._untold.close()
