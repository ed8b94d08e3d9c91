"""A masked-diffusion model whose answers are kept to a language."""

from __future__ import annotations

from dataclasses import dataclass

from polydec.core.canvas_law import AllowedCanvases, CanvasSession, Denoiser
from polydec.core.delegating import DelegatingDenoiser


@dataclass(frozen=True)
class AllowedAnswersDenoiser(DelegatingDenoiser):
    """The laws of `denoiser`, with a language that every answer belongs to.

    The laws stay as they are: a gap's law alone does not say what the other gaps of a pass become.
    `UnmaskerView` puts both together, for whatever method writes the tokens.

    Attributes:
        denoiser: Model whose laws these are.
        language: Which answers may be written.

    Exact: law: the tokens of a pass are a draw from the product of its laws, on condition that the
    canvas can be finished.
    Reduces to: `denoiser` for a language of all canvases.
    """

    denoiser: Denoiser
    language: AllowedCanvases

    @property
    def allowed_canvases(self) -> AllowedCanvases:
        return self.language

    def open_canvas(self, length: int, prompt: int = 0) -> CanvasSession:
        """Open a canvas session of the denoiser.

        Args:
            length: Positions of the canvas.
            prompt: How many of the first positions are the prompt. Default 0.

        Raises:
            PolydecError: The canvas is longer than the model's context.
        """
        return self.denoiser.open_canvas(length, prompt)
