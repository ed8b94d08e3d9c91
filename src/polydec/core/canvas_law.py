"""The law of a masked-diffusion model: of each gap of a canvas, given all that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from polydec.core.types import TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor

Canvas = tuple[int | None, ...]
"""Prompt and answer by position; None is a gap."""


class CanvasSession(Protocol):
    """A canvas under one model, with the keys and values of its last passes. It may become shorter, and grows only by positions
    that the pass feeds."""

    async def score(self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]) -> Tensor:
        """The model's log-weights at these positions (ascending, inside `feed`; where a token stands they are what the model
        says there, having seen it), RV in float64, -inf at the mask token. Only
        the positions `feed` (ascending) run; they see the others as these were when they were last fed. So the first pass
        feeds all that the model sees: under a block-causal model everything up to the end of a block."""
        ...

    async def read(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """The same pass, asked for states: of each position of `feed` the state whose law `Denoiser.laws` gives, [feed, H]."""
        ...

    def fork(self) -> CanvasSession:
        """A twin that knows what the passes so far have left; from here on each goes its own way."""
        ...

    def close(self) -> None: ...


class Denoiser(Protocol):
    """A law over a canvas with gaps: of each gap, given all that is known."""

    family: ClassVar[str]
    """"diffusion": what tells it from an autoregressive model."""

    @property
    def block(self) -> int:
        """Positions of the model's own blocks, counted from the canvas's start: a position sees its block and those before it.
        0: every position sees all."""
        ...

    @property
    def context(self) -> int:
        """Positions of the longest canvas."""
        ...

    @property
    def boundary(self) -> int | None:
        """The id that stood between a text and the gaps behind it when the model was trained; None: none did."""
        ...

    @property
    def vocab(self) -> TokenVocabulary: ...
    def open(self, length: int, prompt: int = 0) -> CanvasSession:
        """For a canvas of `length` positions, of which the first `prompt` are the prompt. Raises PolydecError where it is
        longer than the model's context."""
        ...

    def embed(self, canvas: Sequence[int | None]) -> Tensor:
        """What enters the first layer for each token, and for gaps, [n, H], fp32."""
        ...

    def laws(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-weights at these positions, whose states these are, as `CanvasSession.score` gives them."""
        ...
