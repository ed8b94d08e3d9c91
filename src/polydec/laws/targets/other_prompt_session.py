"""A session whose text is read behind another prompt than the one that was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session
from polydec.core.types import Draft, ScoreRequest


class PrefixSession(DelegatingSession):
    """A session whose text stands behind another prompt than the one that was given.

    Only what was committed since the prompt may be taken back. Keys stand at other positions than
    the given tokens, so they cannot be read. `prompt` says what the given prompt is, for error
    messages.

    Args:
        inner: The session that reads the other prompt.
        roots: Last token of the given prompt, and last token of the one that is read. While nothing
            is committed, the one stands for the other at the root of a draft.
        done: Tokens committed since the prompt. Default 0.
    """

    prompt: str

    def __init__(self, inner: Session, roots: tuple[int, int], done: int = 0) -> None:
        self._inner = inner
        self._roots = roots
        self._done = done
        self._draft: Draft | None = None

    def _read(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens that begin with the root, as the inner session knows them."""
        # Only the first root differs: from the first commit on, both texts have the same tokens.
        root, read = self._roots
        if not self._done and tokens and tokens[0] == root:
            return (read, *tokens[1:])
        return tuple(tokens)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft; while nothing is committed, its root is replaced by the last token of the
        prompt that is read.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        self._draft = draft
        return await self._inner.score_draft(replace(draft, token=self._read(draft.token)), want)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Let the inner session shape rows; the root of the draft is replaced as in `score_draft`.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows.
        """
        return self._inner.bend_scores(replace(draft, token=self._read(draft.token)), scores)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(self._read(tokens))
        self._done += len(tokens)
        self._draft = None

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; the root token is that of the given
        prompt again.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.
        """
        left = self._inner.keep_nodes(nodes, root)
        draft = self._draft
        assert draft is not None, "the inner session keeps what it never scored"
        self._done += draft.depth[root]
        # The inner draft may begin with the other prompt's last token, which the caller has never
        # seen.
        self._draft = replace(left, token=(draft.token[root], *left.token[1:]))
        return self._draft

    def rewind_tokens(self, n: int) -> None:
        # Further back stands the other prompt, whose tokens the caller has not given.
        if not 0 <= n <= self._done:
            raise RequestError(
                f"n is {n}: it must lie in 0 to {self._done}, the tokens since {self.prompt}"
            )
        self._inner.rewind_tokens(n)
        self._done -= n
        self._draft = None

    def text_vectors(self) -> Mapping[int, Tensor]:
        # What stands in the other prompt has no place in the given one.
        return {}

    def text_grids(self) -> Sequence[Any]:
        # Nor has an image of it.
        return ()

    def layer_memory(self, layer: int | None = None) -> tuple[Tensor, Tensor]:
        raise RequestError(
            f"keys cannot be read behind {self.prompt}: they stand at other places than its tokens"
        )
