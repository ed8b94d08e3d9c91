"""The same few layers for every generated token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary, require_scored_draft


@dataclass(frozen=True)
class SkippingTarget:
    """A model whose generated tokens pass some of its layers only; the prompt passes all of them.

    Each layer that runs has its own keys and values. The first generated token comes from all
    layers, as its row ends the prompt.

    Exact: approximate. No verification holds the text to the whole model; perplexity says how far
    it went.
    Reduces to: `target` with all layers.
    Source: Liu et al., "Accelerating inference in large language models with a unified layer
    skipping strategy" (2024).

    Attributes:
        target: The model; its sessions must offer parts (`Session.open_part`).
        keep: Indices of the layers that run, ascending.
    """

    target: Target
    keep: tuple[int, ...]

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return 0

    def open_session(self, prompt: Sequence[int]) -> SkippingSession:
        return SkippingSession(self.target.open_session(prompt), self.keep, len(prompt))


class SkippingSession(DelegatingSession):
    """A session that runs some layers behind the prompt.

    Args:
        whole: The session of all layers.
        layers: Indices of the layers that run.
        prompt: Tokens of the prompt, at least 1.
    """

    _no_parts = "layers of a model that skips layers cannot be chosen again"

    def __init__(self, whole: Session, layers: tuple[int, ...], prompt: int) -> None:
        self._inner = whole
        self._layers = layers
        self._prompt = prompt
        # The part writes to the cache of the complete session.
        self._part = whole.open_part(layers)
        # The last token of the prompt is the root, all others count as committed.
        self._length = prompt - 1
        self._unread: list[int] = []  # committed without a score
        self._scored: Draft | None = None

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft with the chosen layers; the root that ends the prompt passes all layers
        first.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        # What was committed without a score is fed first, as a chain, and becomes part of the
        # cache.
        if self._unread:
            unread = self._unread
            self._unread = []
            await self._score(
                Draft.chain_draft(unread[0], unread[1:]),
                ScoreRequest(law=RowDetail.NOTHING),
                self._length - len(unread),
            )
            self._part.commit_tokens(unread)
        self._scored = draft
        return await self._score(draft, want, self._length)

    async def _score(self, draft: Draft, want: ScoreRequest, length: int) -> DraftScores:
        if length < self._prompt:  # the root ends the prompt: all layers see it
            await self._inner.score_draft(Draft.chain_draft(draft.token[0]), want)
        return await self._part.score_draft(draft, want)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        draft = self._scored
        if draft is None or self._unread:
            known = 0
        else:
            # Committed tokens that the scored draft holds are in the cache; the rest waits.
            known = len(draft.nodes_of(tokens))
        if known:
            self._part.commit_tokens(tokens[:known])
        self._unread += tokens[known:]
        self._length += len(tokens)
        self._scored = None

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: Nothing was scored since the last commit.
        """
        depth = require_scored_draft(self._scored).depth[root]
        self._scored = self._part.keep_nodes(nodes, root)
        self._length += depth
        return self._scored

    def rewind_tokens(self, n: int) -> None:
        if not 0 <= n <= self._length:
            raise RequestError(
                f"n is {n}: it must lie in 0 to {self._length}, the committed tokens"
            )
        self._scored = None
        self._length = self._length - n
        # Tokens that wait were never in the cache: they go first.
        cut = min(n, len(self._unread))
        self._unread = self._unread[: len(self._unread) - cut]
        self._part.rewind_tokens(n - cut)
        # A rewind into the prompt shortens it: its new last token passes all layers again.
        self._prompt = min(self._prompt, self._length + 1)

    def fork(self, choice: int | None = None) -> SkippingSession:
        twin = SkippingSession(self._inner.fork(choice), self._layers, self._prompt)
        twin._length = self._length
        twin._unread = list(self._unread)
        twin._scored = self._scored
        return twin
