"""A law behind an answer in which a mark stands for a thought: a vector that another model makes of the
text so far is read in the mark's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary, require_scored_draft


class MarkedThoughtMaker(Protocol):
    """Who makes the vectors (laws/targets/hidden_thought.py)."""

    async def marked_thought(self, text: tuple[int, ...]) -> int:
        """Make the id that stands for a thought (models/sessions/soft.py).

        Args:
            text: Token ids of the text, the mark last.

        Returns:
            The id that carries the vector.
        """
        ...


def marked_target(
    law: Target, prompt: tuple[int, ...], thinker: MarkedThoughtMaker, mark: int, *, read: bool
) -> Target:
    """A law by which marks of thoughts are read as vectors, or as they are.

    Args:
        law: The law to read.
        prompt: Token ids of the prompt, at least one.
        thinker: Makes the vectors.
        mark: The token that asks for one.
        read: Whether a mark is read as a vector.

    Returns:
        The law.
    """
    if not read:
        return law
    return MarkedThoughtTarget(law, prompt, thinker, mark)


@dataclass(frozen=True)
class MarkedThoughtTarget:
    """`target`, by which each mark that stands behind `prompt` is read as a vector.

    What a mark is read as follows from the text before it, so the law is a law of texts, and whatever
    drafts for it is verified as ever. A mark in a prompt is read as it is, and so is any other text.

    Exact: the law of `target` behind these vectors.
    Reduces to: `target` where no answer holds the mark.

    Attributes:
        target: The law to read.
        prompt: Token ids of the prompt, at least one.
        thinker: Makes the vectors.
        mark: The token that asks for one.
        known: Ids by the text that they were made of, for all sessions.
    """

    target: Target
    prompt: tuple[int, ...]
    thinker: MarkedThoughtMaker
    mark: int
    known: dict[tuple[int, ...], int] = field(
        default_factory=dict[tuple[int, ...], int], compare=False
    )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: layers that run alone would read a mark as it is."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> Session:
        n = len(self.prompt)
        if tuple(prompt[:n]) != self.prompt:
            return self.target.open_session(prompt)
        # An answer that was begun waits, as its thoughts are made in passes.
        inner = self.target.open_session(self.prompt)
        return MarkedThoughtSession(self, inner, tuple(prompt[:-1]), tuple(prompt[n - 1 : -1]))


class MarkedThoughtSession(DelegatingSession):
    """A session that reads marks of thoughts as vectors.

    Args:
        law: Whose session it is.
        inner: The session that reads vectors.
        text: All committed tokens.
        waits: Those of them, the last ones, that the inner session has not been given: a thought is
            made in the next pass.
    """

    _no_parts = "layers cannot run alone behind thoughts: these would be read without them"

    def __init__(
        self,
        law: MarkedThoughtTarget,
        inner: Session,
        text: tuple[int, ...],
        waits: tuple[int, ...] = (),
    ) -> None:
        self._law = law
        self._inner = inner
        self._text = text
        self._waits = waits
        self._draft: Draft | None = None

    def _asks(self, token: int, place: int) -> bool:
        """Whether a token at a place of the text is read as a vector."""
        return token == self._law.mark and place >= len(self._law.prompt)

    async def _thought_of(self, text: tuple[int, ...]) -> int:
        """The id that is read in the place of the last token of a text."""
        known = self._law.known
        if text not in known:
            known[text] = await self._law.thinker.marked_thought(text)
        return known[text]

    async def _settle_waiting(self) -> None:
        """Give the inner session all that is committed."""
        if not self._waits:
            return
        first = len(self._text) - len(self._waits)
        read = [
            await self._thought_of(self._text[: at + 1]) if self._asks(x, at) else x
            for at, x in enumerate(self._waits, first)
        ]
        self._inner.commit_tokens(read)
        self._waits = ()

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        await self._settle_waiting()
        return await self._inner.prefill_prompt(want)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft; each mark in it is read as the vector of its own path.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        await self._settle_waiting()
        self._draft = draft
        if self._law.mark not in draft.token:
            return await self._inner.score_draft(draft, want)
        # Two paths that end with a mark are two texts, and have two vectors.
        token = list(draft.token)
        for node, x in enumerate(draft.token):
            place = len(self._text) + draft.depth[node]
            if not draft.is_probe(node) and self._asks(x, place):
                path = (0, *draft.path_to(node))
                token[node] = await self._thought_of((*self._text, *(draft.token[i] for i in path)))
        return await self._inner.score_draft(replace(draft, token=tuple(token)), want)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        first = len(self._text)
        self._text += tuple(tokens)
        self._draft = None
        read = list[int]()
        if not self._waits:
            for at, x in enumerate(tokens, first):
                # What was scored is known; of anything else the thought is made in the next pass.
                made = self._law.known.get(self._text[: at + 1]) if self._asks(x, at) else x
                if made is None:
                    break
                read.append(made)
        self._waits += tuple(tokens[len(read) :])
        if read:
            self._inner.commit_tokens(read)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; its tokens are those that were given.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: Nothing was scored since the last commit.
        """
        draft = require_scored_draft(self._draft)
        path, _, left = draft.subtree_below(root, nodes)
        # The inner session keeps vectors, the caller is given tokens.
        self._inner.keep_nodes(nodes, root)
        self._text += tuple(draft.token[i] for i in path)
        self._draft = left
        return left

    def rewind_tokens(self, n: int) -> None:
        # Tokens that wait were fed to no model: they go first.
        waiting = min(max(n, 0), len(self._waits))
        self._inner.rewind_tokens(n - waiting)
        self._waits = self._waits[: len(self._waits) - waiting]
        self._text = self._text[: len(self._text) - n]
        self._draft = None

    def fork(self, choice: int | None = None) -> MarkedThoughtSession:
        twin = MarkedThoughtSession(self._law, self._inner.fork(choice), self._text, self._waits)
        twin._draft = self._draft
        return twin
