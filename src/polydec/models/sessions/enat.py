"""A masked-diffusion model that encodes each token once and decodes gaps against what was encoded (ENAT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.types import TokenVocabulary
from polydec.models.nets.enat import EnatAnswer, EnatNetwork, EnatQuery
from polydec.models.nets.scores import require_finite_logits
from polydec.models.sessions.live_references import LiveReferences


class EnatDenoiser:
    """A `Denoiser` over such a network.

    Args:
        network: The network.
        vocab: The ids that may be written.
    """

    family: ClassVar[str] = "diffusion"
    layers = 0  # none can run alone
    live: Sequence[Any] = ()  # boards cannot be put on hold
    allowed_canvases = None  # all of them
    block = 0
    boundary = None
    shifted = False

    def __init__(self, network: EnatNetwork, vocab: TokenVocabulary) -> None:
        self.network = network
        self.vocab = vocab
        self.mask = network.mask
        self._boards = LiveReferences[EnatBoard]()

    @property
    def context(self) -> int:
        """Positions of the longest canvas."""
        return self.network.context

    @property
    def gap_token(self) -> int:
        """The id that stands for a gap."""
        return self.mask

    @property
    def nbytes(self) -> int:
        """Bytes of what open boards keep."""
        return sum(board.shown_SW.nbytes for board in self._boards)

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        """What stands for each token, and for gaps, without their places, ``[n, W]``."""
        return self.network.embed_tokens([self.mask if x is None else x for x in canvas])

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-weights of positions whose states are known.

        Args:
            state_RH: States behind the last layer of either half.
            rows: The positions; this model does not need them.

        Returns:
            Log-weights, ``[R, V]``, float64, -inf at what is never written.

        Raises:
            RequestError: A number is not finite.
        """
        logw_RV = self.network.head_logits(state_RH).double()
        require_finite_logits(logw_RV.max(-1).values.tolist())
        return logw_RV

    def open_canvas(self, length: int, prompt: int = 0) -> EnatBoard:
        """Open a canvas.

        Args:
            length: Positions of the canvas.
            prompt: How many of the first ones are the prompt: gaps among them are a prompt that is
                left out, and nobody sees them. Default 0.

        Returns:
            The session.

        Raises:
            RequestError: The canvas is longer than the model's context.
        """
        if length > self.network.context:
            raise RequestError(
                f"the canvas has {length} positions: the model's context holds {self.network.context}"
            )
        board = EnatBoard(self, prompt)
        self.watch_board(board)
        return board

    def watch_board(self, board: EnatBoard) -> None:
        """Count the bytes of what this board keeps, too, as long as it lives."""
        self._boards.add_object(board)


class EnatBoard:
    """A canvas under it.

    A token that a pass feeds is encoded; later passes that do not feed it see what was made of it
    then. Gaps that a pass feeds are decoded, and those that it does not feed are seen by nobody. The
    token at the first place is the class, which conditions every layer besides.
    """

    def __init__(self, model: EnatDenoiser, prompt: int) -> None:
        self._model = model
        self._prompt = prompt
        # Tokens that were encoded, by position, and what later passes see of them, in the same order.
        self.known = dict[int, int]()
        self.shown_SW = torch.zeros(0, model.network.shape.width)

    async def score_canvas(
        self, canvas: Sequence[int | None], rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Log-weights of the tokens at some positions.

        Args:
            canvas: A token id for each position; None: a gap.
            rows: The positions that are asked for, ascending.
            feed: The positions that are computed anew, ascending.

        Returns:
            Log-weights, ``[R, V]``, float64.

        Raises:
            RequestError: A token was never fed, or a number is not finite.
        """
        state_FW = await self.read_canvas(canvas, feed)
        at = {position: i for i, position in enumerate(feed)}
        return self._model.laws_of_states(state_FW[[at[r] for r in rows]], rows)

    async def read_canvas(self, canvas: Sequence[int | None], feed: Sequence[int]) -> Tensor:
        """States behind the last layer at the positions that are fed.

        Args:
            canvas: A token id for each position; None: a gap.
            feed: The positions that are computed anew, ascending.

        Returns:
            States, one a position of `feed`, ``[n, W]``; zeros at a gap of the prompt.

        Raises:
            RequestError: A token was never fed.
        """
        # A prompt that is left out has gaps, which are no part of what is drawn.
        tokens = [(p, x) for p in feed if (x := canvas[p]) is not None]
        gaps = tuple(p for p in feed if canvas[p] is None and p >= self._prompt)
        fed = {p for p, _ in tokens}
        old = [p for p, x in enumerate(canvas) if x is not None and p not in fed]
        if missing := [p for p in old if self.known.get(p) != canvas[p]]:
            raise RequestError(f"feed lacks position {missing[0]}: no pass fed the token there")
        at = {p: i for i, p in enumerate(self.known)}
        old_OW = self.shown_SW[torch.tensor([at[p] for p in old], dtype=torch.long)]
        new_places = tuple(p for p, _ in tokens)
        query = EnatQuery(old_OW, tuple(x for _, x in tokens), new_places, gaps, canvas[0])
        answer: EnatAnswer = await ForwardQuery(self._model.network, query, len(feed))
        # What became a gap again, or another token, is forgotten.
        self.known = {p: self.known[p] for p in old} | dict(tokens)
        self.shown_SW = torch.cat([old_OW, answer.shown_NW])
        # In the order of what was fed, whichever half they came from.
        row = {p: i for i, p in enumerate(feed)}
        state_FW = torch.zeros(len(feed), self._model.network.shape.width)
        state_FW[torch.tensor([row[p] for p in (*new_places, *gaps)], dtype=torch.long)] = (
            torch.cat([answer.new_NW, answer.gap_MW])
        )
        return state_FW

    def fork(self) -> EnatBoard:
        twin = EnatBoard(self._model, self._prompt)
        twin.known = dict(self.known)
        twin.shown_SW = self.shown_SW
        self._model.watch_board(twin)
        return twin

    def close(self) -> None:
        self.known = {}
        self.shown_SW = self.shown_SW[:0].clone()
