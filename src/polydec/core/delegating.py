"""A session that passes every verb on to another one: whoever bends a law writes down only what it does differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft, ScoreRequest

if TYPE_CHECKING:
    from torch import Tensor


class DelegatingSession:
    """What a session around another one does where it has nothing of its own to say. A new member of `Session` gets its line
    here, and every wrapper has it.

    `fork` is missing on purpose: a twin holds the wrapper's own state too, which only the wrapper knows; and so are `score`,
    `commit`, `keep` and `rewind`, which move that state. A wrapper that forgets one of them is no Session, and a type
    checker says so where its target opens it.
    """

    _inner: Session

    @property
    def peers(self) -> int:
        return self._inner.peers

    async def prefill(self, want: ScoreRequest) -> DraftScores:
        return await self._inner.prefill(want)

    def evict(self) -> None:
        self._inner.evict()

    def states(self, hidden_NH: Tensor) -> DraftScores:
        return self._inner.states(hidden_NH)

    def normed(self, hidden_NH: Tensor) -> Tensor:
        return self._inner.normed(hidden_NH)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self._inner.embed(tokens)

    def memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        return self._inner.memory(layer)

    def bend(self, draft: Draft, scores: DraftScores) -> DraftScores:
        return self._inner.bend(draft, scores)

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        return self._inner.part(layers, without, together)

    def close(self) -> None:
        self._inner.close()


class LawsOnlySession(DelegatingSession):
    """A session around others of which nothing can be read but its laws: what they compute below them is not its own. A new
    member of that kind gets its line here, too."""

    def _refusal(self, what: str) -> Exception:
        """Why these (states, embeddings, keys, layers) cannot be read."""
        raise NotImplementedError

    def states(self, hidden_NH: Tensor) -> DraftScores:
        raise self._refusal("states")

    def normed(self, hidden_NH: Tensor) -> Tensor:
        raise self._refusal("states")

    def embed(self, tokens: Sequence[int]) -> Tensor:
        raise self._refusal("embeddings")

    def memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        raise self._refusal("keys")

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        raise self._refusal("layers")
