"""Some layers of a whole session: its first ones (early exit), or any of them (layer skip)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import Session
from polydec.core.types import Draft, ScoreRequest
from polydec.models.nets.query import Run
from polydec.models.nets.scores import LogitScores
from polydec.models.sessions import depths, skips
from polydec.models.sessions.ledger import SessionLedger


class FullSession(Session, Protocol):
    """The session of all layers, whose account its parts share."""

    @property
    def ledger(self) -> SessionLedger: ...
    async def pause_on_hold(self) -> None: ...
    def fork(self, choice: int | None = None) -> FullSession: ...


class _LayerSubsetSession(DelegatingSession):
    """Shares the account of a full session.

    Whatever is rewound here is rewound there too, and closing is left to it. A fork has a full
    session of its own, which it closes (alone).
    """

    def __init__(self, whole: FullSession, alone: bool) -> None:
        # Verbs that are not defined here go to the full session.
        self._inner = self._whole = whole
        self._alone = alone

    def rewind_tokens(self, n: int) -> None:
        self._whole.rewind_tokens(n)

    def close(self) -> None:
        if self._alone:
            self._whole.close()


class PartSession(_LayerSubsetSession):
    """The first `depth` layers of a session (early exit).

    What they have computed of a draft stays, and the full session goes on from there when it scores
    a draft that extends it. Committed entries that only these layers have seen pass the others when
    a deeper score needs them.
    """

    def __init__(self, whole: FullSession, depth: int, alone: bool = False) -> None:
        super().__init__(whole, alone)
        self._depth = depth

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> LogitScores:
        """The laws after the first layers, through final norm and head.

        Args:
            draft: The draft; one that extends the last one feeds its new nodes only.
            want: What is read of the scores.

        Returns:
            The laws at every node.
        """
        scores = await depths.score_to_depth(self._whole.ledger, self._depth, draft, want)
        # Only between passes may the engine take the memory back.
        await self._whole.pause_on_hold()
        return scores

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._whole.commit_tokens(tokens)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; see `Session.keep_nodes`.

        Args:
            nodes: The nodes that stay, ascending, each node's parent among them.
            root: The node that becomes the root; what does not lie below it goes. Default 0: the
                old root.

        Returns:
            The draft as it now stands.
        """
        return self._whole.keep_nodes(nodes, root)

    def fork(self, choice: int | None = None) -> PartSession:
        # The fork has a full session of its own, which nobody else closes.
        return PartSession(self._whole.fork(choice), self._depth, alone=True)


class SkipSession(_LayerSubsetSession):
    """Some layers of a session, or halves of them (layer skip).

    Committed entries are those of the full session. Staged ones hold what these layers made of them
    (nothing where their attention does not run), and the full session feeds them anew. What is
    committed here, not in the full session, stays as these layers had it; if the full one scores
    after that, it feeds it again.
    """

    def __init__(self, whole: FullSession, run: Run, alone: bool = False) -> None:
        super().__init__(whole, alone)
        self._run = run

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> LogitScores:
        """The laws of the network that has these layers only.

        Args:
            draft: The draft; one that extends the last one feeds its new nodes only.
            want: What is read of the scores.

        Returns:
            The laws at every node; nodes that the full session has scored already have its laws.
        """
        scores = await skips.score_skipping_layers(self._whole.ledger, self._run, draft, want)
        await self._whole.pause_on_hold()
        return scores

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        # Not the full session's commit: that would feed these tokens again through all layers.
        skips.commit_with_skips(self._whole.ledger, tokens)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last; see `Session.keep_nodes`.

        Args:
            nodes: The nodes that stay, ascending, each node's parent among them.
            root: The node that becomes the root; what does not lie below it goes. Default 0: the
                old root.

        Returns:
            The draft as it now stands.
        """
        return skips.keep_with_skips(self._whole.ledger, nodes, root)

    def fork(self, choice: int | None = None) -> SkipSession:
        return SkipSession(self._whole.fork(choice), self._run, alone=True)
