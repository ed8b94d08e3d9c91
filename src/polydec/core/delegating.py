"""Sessions and denoisers that pass everything on to another one: whoever bends a law writes down
only what it does differently.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from polydec.base.errors import RequestError
from polydec.core.canvas_law import AllowedCanvases, Denoiser
from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary

if TYPE_CHECKING:
    from torch import Tensor


class DelegatingSession:
    """What a session around another one does where it has nothing of its own to say. A new member
    of `Session` gets its line here, and every wrapper has it.

    `fork` is missing on purpose: a twin holds the wrapper's own state too, which only the wrapper
    knows; and so are `score_draft`, `commit_tokens`, `keep_nodes` and `rewind_tokens`, which move that state. A wrapper that
    forgets one of them is no Session, and a type checker says so where its target opens it.
    """

    _inner: Session
    _no_parts: ClassVar[str] = ""
    """Why its layers cannot run alone; empty where the inner session's can."""

    @property
    def peers(self) -> int:
        return self._inner.peers

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        return await self._inner.prefill_prompt(want)

    def evict_cache(self) -> None:
        self._inner.evict_cache()

    def score_states(self, hidden_NH: Tensor) -> DraftScores:
        return self._inner.score_states(hidden_NH)

    def normed_states(self, hidden_NH: Tensor) -> Tensor:
        return self._inner.normed_states(hidden_NH)

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        return self._inner.embed_tokens(tokens)

    def text_vectors(self) -> Mapping[int, Tensor]:
        return self._inner.text_vectors()

    def text_grids(self) -> Sequence[Any]:
        return self._inner.text_grids()

    def read_slots(
        self, vectors_NH: Tensor, grid: tuple[int, int] | None = None, causal: bool = False
    ) -> Coroutine[Any, Any, Tensor]:
        """Pass slots to the inner session.

        Args:
            vectors_NH: What enters the first layer for them.
            grid: Rows and columns of the image whose cells they are.
            causal: Whether a slot sees none behind it.

        Returns:
            What gives their states, once it is awaited.
        """
        return self._inner.read_slots(vectors_NH, grid, causal)

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        return self._inner.layer_memory(layer)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Pass rows of somebody else's law to the inner session, which shapes them as its own.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape.

        Returns:
            The shaped rows; `scores` themselves where the inner session shapes nothing.
        """
        return self._inner.bend_scores(draft, scores)

    def open_part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        """Open a part of the inner session that runs some of its layers only.

        Args:
            layers: Indices of the layers that run.
            without: Halves of layers that are left out: 2 i is the attention of layer i, 2 i + 1
                its MLP.
            together: How many consecutive attentions read the same input. Default 1.

        Returns:
            A session over the same cache.

        Raises:
            RequestError: They cannot run alone behind this session.
        """
        if self._no_parts:
            raise RequestError(self._no_parts)
        return self._inner.open_part(layers, without, together)

    def close(self) -> None:
        self._inner.close()


class LawsOnlySession(DelegatingSession):
    """A session around others of which nothing can be read but its laws.

    States, embeddings, vectors, slots, keys and layers of the inner sessions are not this session's own, so each of
    them is refused. A new member of `Session` of that kind gets its line here, too.
    """

    def _refusal(self, what: str) -> Exception:
        """Why these (states, embeddings, vectors, slots, keys, layers) cannot be read."""
        raise NotImplementedError

    def score_states(self, hidden_NH: Tensor) -> DraftScores:
        raise self._refusal("states")

    def normed_states(self, hidden_NH: Tensor) -> Tensor:
        raise self._refusal("states")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise self._refusal("embeddings")

    def text_vectors(self) -> Mapping[int, Tensor]:
        raise self._refusal("vectors")

    def text_grids(self) -> Sequence[Any]:
        raise self._refusal("vectors")

    def read_slots(
        self, vectors_NH: Tensor, grid: tuple[int, int] | None = None, causal: bool = False
    ) -> Coroutine[Any, Any, Tensor]:
        """Refuse: the states of the inner sessions are not this session's own.

        Args:
            vectors_NH: Not read.
            grid: Not read.
            causal: Not read.

        Raises:
            PolydecError: Always; the wrapper's own `_refusal` says why.
        """
        raise self._refusal("slots")

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        raise self._refusal("keys")

    def open_part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        """Refuse: the layers of the inner sessions are not this session's own.

        Args:
            layers: Not read.
            without: Not read.
            together: Not read.

        Raises:
            PolydecError: Always; the wrapper's own `_refusal` says why.
        """
        raise self._refusal("layers")


class DelegatingDenoiser:
    """What a denoiser around another one does where it has nothing of its own to say.

    `open_canvas` is missing on purpose: a wrapper bends what the canvas sessions say.
    """

    denoiser: Denoiser
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
    def gap_token(self) -> int:
        return self.denoiser.gap_token

    @property
    def allowed_canvases(self) -> AllowedCanvases | None:
        return self.denoiser.allowed_canvases

    @property
    def context(self) -> int:
        return self.denoiser.context

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        return self.denoiser.embed_canvas(canvas)

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Return what the inner denoiser says of these states.

        Args:
            state_RH: States of the positions, shape ``[R, H]``.
            rows: Position of each state in the canvas.

        Returns:
            Log-weights, shape ``[R, V]``.
        """
        return self.denoiser.laws_of_states(state_RH, rows)
