"""The same few layers for every generated token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary


@dataclass(frozen=True)
class SkippingTarget:
    """The prompt passes every layer of `target`; from then on only these layers run, each over its own keys and values.

    keep: ascending indices. `target` must offer parts (session.part). The first generated token comes from the whole
    model, as its row ends the prompt.

    Exact: approximate. No verification holds the text to the whole model; perplexity says how far it went.
    Reduces to: `target` with all layers.
    Source: Liu et al., "Accelerating inference in large language models with a unified layer skipping strategy" (2024).
    """

    target: Target
    keep: tuple[int, ...]

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return 0

    def open(self, prompt: Sequence[int]) -> SkippingSession:
        return SkippingSession(self.target.open(prompt), self.keep, len(prompt))


class SkippingSession(DelegatingSession):
    """prompt: tokens of it, or of what a rewind left of it; length: tokens committed."""

    def __init__(self, whole: Session, layers: tuple[int, ...], prompt: int) -> None:
        self._inner = whole
        self._layers = layers
        self._prompt = prompt
        self._part = whole.part(layers)
        self._length = prompt - 1
        self._unread: list[int] = []  # committed without a score
        self._scored: Draft | None = None

    async def score(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        if self._unread:
            unread = self._unread
            self._unread = []
            await self._score(
                Draft.chain(unread[0], unread[1:]),
                ScoreRequest(law=RowDetail.NOTHING),
                self._length - len(unread),
            )
            self._part.commit(unread)
        self._scored = draft
        return await self._score(draft, want, self._length)

    async def _score(self, draft: Draft, want: ScoreRequest, length: int) -> DraftScores:
        if length < self._prompt:  # the root ends the prompt: all layers see it
            await self._inner.score(Draft.chain(draft.token[0]), want)
        return await self._part.score(draft, want)

    def commit(self, tokens: Sequence[int]) -> None:
        draft = self._scored
        if draft is None or self._unread:
            known = 0
        else:
            known = len(draft.nodes_of(tokens))
        if known:
            self._part.commit(tokens[:known])
        self._unread += tokens[known:]
        self._length += len(tokens)
        self._scored = None

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        if self._scored is None:
            raise RequestError(
                "no draft has been scored since the last commit: there is nothing to keep"
            )
        depth = self._scored.depth[root]
        self._scored = self._part.keep(nodes, root)
        self._length += depth
        return self._scored

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self._length:
            raise RequestError(
                f"n is {n}: it must lie in 0 to {self._length}, the committed tokens"
            )
        self._scored = None
        self._length = self._length - n
        cut = min(n, len(self._unread))
        self._unread = self._unread[: len(self._unread) - cut]
        self._part.rewind(n - cut)
        self._prompt = min(self._prompt, self._length + 1)

    def fork(self, choice: int | None = None) -> SkippingSession:
        twin = SkippingSession(self._inner.fork(choice), self._layers, self._prompt)
        twin._length = self._length
        twin._unread = list(self._unread)
        twin._scored = self._scored
        return twin

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        raise RequestError("layers of a model that skips layers cannot be chosen again")
