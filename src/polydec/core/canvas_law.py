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
    """A canvas under one model, with the keys and values of its last passes. It may become shorter,
    and it grows only by positions that the pass feeds.
    """

    async def score_canvas(
        self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Score positions of the canvas in one forward pass.

        Only the positions in `feed` run. They see the other positions as these were when they were
        last fed. So the first pass feeds all that the model sees: under a block-causal model
        everything up to the end of a block.

        Args:
            canvas: The canvas as it stands now, by position; None is a gap.
            rows: Positions whose laws are returned, ascending, all of them in `feed`. Where a token
                stands, the law is what the model says there after it has seen that token.
            feed: Positions that the pass computes, ascending.

        Returns:
            Log-weights of the model at `rows`, shape ``[R, V]``, float64, -inf at the mask token.
        """
        ...

    async def read_canvas(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """Run the pass of `score_canvas`, but return hidden states in place of laws.

        Args:
            canvas: The canvas as it stands now, by position; None is a gap.
            feed: Positions that the pass computes, ascending.

        Returns:
            For each position of `feed` the state from which `Denoiser.laws_of_states` computes the law, shape
            ``[len(feed), H]``.
        """
        ...

    def fork(self) -> CanvasSession:
        """A twin that knows what the passes so far have left; from here on each goes its own way."""
        ...

    def close(self) -> None: ...


class AllowedRows(Protocol):
    """The laws of some gaps on condition that the canvas can be finished as an answer that is allowed,
    and of gaps that are filled one after the other."""

    def all_laws(self) -> Tensor:
        """The law of each gap, whatever the others become: log-probabilities, [R, V]."""
        ...

    def law_of_row(self, i: int) -> Tensor:
        """The law of row i given what was filled so far: log-probabilities, [V]."""
        ...

    def fill_row(self, i: int, token: int) -> None:
        """Fill a gap: the laws of the others are from now on given this token.

        Args:
            i: Index of the row.
            token: Token id, of positive probability.
        """
        ...

    def fork_rows(self) -> AllowedRows:
        """A twin in which other tokens may be filled."""
        ...


class AllowedCanvases(Protocol):
    """Which answers a canvas may come to hold."""

    def can_finish(self, canvas: Canvas, begin: int) -> bool:
        """Tell whether a canvas can be filled to an answer that is allowed.

        Args:
            canvas: Prompt and answer; None is a gap.
            begin: First position of the answer.

        Returns:
            True where it can.
        """
        ...

    def read_rows(
        self, canvas: Canvas, begin: int, rows: Sequence[int], logp_RV: Tensor
    ) -> AllowedRows:
        """Bind the laws of a pass to what is allowed.

        Args:
            canvas: Prompt and answer; None is a gap.
            begin: First position of the answer.
            rows: Gaps whose laws are known, ascending.
            logp_RV: Their laws by the model, normalised, shape ``[R, V]``, float64.

        Returns:
            The laws of these gaps, on condition that the canvas can be finished.
        """
        ...


class Denoiser(Protocol):
    """A law over a canvas with gaps: of each gap, given all that is known."""

    family: ClassVar[str]
    """"diffusion": what tells it from an autoregressive model."""

    @property
    def block(self) -> int:
        """Positions in one of the model's own blocks, counted from the start of the canvas: a
        position sees its block and those before it. 0: every position sees all.
        """
        ...

    @property
    def context(self) -> int:
        """Positions of the longest canvas."""
        ...

    @property
    def boundary(self) -> int | None:
        """The id that stood between a text and the gaps behind it when the model was trained;
        None: none did.
        """
        ...

    @property
    def gap_token(self) -> int:
        """The id that stands for a gap. It is never written, and may lie behind the vocabulary."""
        ...

    @property
    def allowed_canvases(self) -> AllowedCanvases | None:
        """Which answers may be written; None: all. Laws are the model's own all the same: whoever
        writes tokens keeps to it.
        """
        ...

    @property
    def vocab(self) -> TokenVocabulary: ...
    def open_canvas(self, length: int, prompt: int = 0) -> CanvasSession:
        """Open a session for one canvas.

        Args:
            length: Positions of the longest canvas that the session will hold.
            prompt: How many of the first positions are the prompt. Default 0.

        Returns:
            A session with nothing cached.

        Raises:
            PolydecError: `length` is larger than the model's context.
        """
        ...

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        """What enters the first layer for each token, and for gaps, [n, H], fp32."""
        ...

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Compute laws from hidden states, as `CanvasSession.score_canvas` gives them.

        Args:
            state_RH: States of the positions, as `CanvasSession.read_canvas` gives them, shape ``[R, H]``.
            rows: Position of each state in the canvas.

        Returns:
            Log-weights, shape ``[R, V]``, float64, -inf at the mask token.
        """
        ...
