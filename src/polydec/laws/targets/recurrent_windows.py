"""A law behind a long prompt that is read window by window: of each window the next one sees one
vector (added recurrence)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.row_scores import PickedScores
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.targets.continuous_thoughts import STATE
from polydec.laws.targets.thinking import ThinkingSession
from polydec.models.sessions.soft import make_soft_tokens

QUIET = ScoreRequest(law=RowDetail.NOTHING, prompt=True, hidden=True)
"""Of a window its states are read alone."""


class WindowSummaryMaker(Protocol):
    """Makes a vector of a window (models/learned/kinds/window_summary.py)."""

    @property
    def window_length(self) -> int: ...
    @property
    def begin_token(self) -> int: ...
    def summary_vector(self, state_WH: Tensor) -> Tensor:
        """Compute the vector.

        Args:
            state_WH: States of the window's tokens behind the final norm, shape ``[W, H]``.

        Returns:
            The vector in the place of an embedding, shape ``[H]``.
        """
        ...


@dataclass(frozen=True, eq=False)
class WindowedPromptReader:
    """Read all windows of a prompt but the last, one after another.

    Each is read behind the token that windows begin with and the vector of the window before, of
    which the first has none.

    Attributes:
        target: The model.
        maker: Makes the vectors.
        windows: Token ids of each window, at least one window.
        count: 1: the one vector that the last window is read behind.
    """

    target: Target
    maker: WindowSummaryMaker
    windows: tuple[tuple[int, ...], ...]
    count: int = field(default=1, init=False)

    async def commit_thought(self, session: Session, prompt: tuple[int, ...]) -> None:
        """Commit the token that windows begin with, and the vector of the last window that was read.

        Args:
            session: A session on that token, with nothing committed.
            prompt: The token alone.
        """
        vector, _ = await self.read_windows(QUIET)
        session.commit_tokens((prompt[-1], *vector))

    async def read_windows(
        self, want: ScoreRequest
    ) -> tuple[tuple[int, ...], list[tuple[DraftScores, int]]]:
        """Read the windows.

        Args:
            want: What is read of the scores, of which rows of the prompt are asked for.

        Returns:
            The vector of the last one, as a token, and for each token of the windows the scores and
            the row that foretell it.
        """
        vector: tuple[int, ...] = ()
        rows = list[tuple[DraftScores, int]]()
        for window in self.windows:
            read = (self.maker.begin_token, *vector, *window)
            session = self.target.open_session(read)
            try:
                before = await session.prefill_prompt(replace(want, hidden=True))
                last = await session.score_draft(Draft.chain_draft(read[-1]), STATE)
                state_NH = _all_states(before, last)
                # A window's own tokens stand behind BEGIN and the vector.
                state_WH = session.normed_states(state_NH[-len(window) :])
            finally:
                session.close()
            # A token is foretold at the one before it, the first one at the vector.
            rows += [(before, len(vector) + at) for at in range(len(window))]
            made_H = self.maker.summary_vector(state_WH)
            vector = make_soft_tokens(
                made_H[None], self.target.vocab.size, len(made_H), "a window's vector"
            )
        return vector, rows


def _all_states(before: DraftScores, last: DraftScores) -> Tensor:
    """States of all tokens of a window. Raises RequestError where the model gives none."""
    parts = [before.hidden_NH, last.hidden_NH]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        raise RequestError("the model shows no states: of its windows no vectors can be made")
    return torch.cat(known)


@dataclass(frozen=True)
class WindowedPromptTarget:
    """`target`, to which a text that begins with `prompt` is shown as its last window alone, behind
    one vector of the windows before. The answer belongs to the last window, however long it gets.

    Windows have `maker.window_length` tokens, counted from the first one behind `maker.begin_token`; the last
    one has at least one. Any other text is read as it is.

    Exact: the law of `target` behind these tokens and vectors, no approximation of it. Reduces to:
    `target` where the prompt has no more than one window.
    """

    target: Target
    prompt: tuple[int, ...]
    maker: WindowSummaryMaker

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: layers that run alone would read a text without its vector."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> Session:
        n = len(self.prompt)
        windows, tail = split_windows(self.prompt, self.maker.begin_token, self.maker.window_length)
        if tuple(prompt[:n]) != self.prompt or not windows:
            return self.target.open_session(prompt)
        begin = self.maker.begin_token
        # The last window is committed behind the vector, once that is made.
        waits = (*tail, *prompt[n:])[:-1]
        return WindowedSession(
            self.target.open_session((begin,)),
            WindowedPromptReader(self.target, self.maker, windows),
            (begin,),
            prompt[-1],
            len(waits),
            waits,
            begun=self.prompt[0] == begin,
        )


def split_windows(
    prompt: Sequence[int], begin: int, size: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Cut a prompt into windows.

    Args:
        prompt: Token ids.
        begin: The token that windows are read behind; where the prompt begins with it, it belongs
            to no window.
        size: Tokens of a window.

    Returns:
        All windows but the last, and the last one, which has 1 to `size` tokens.
    """
    text = tuple(prompt)
    if text[0] == begin:
        text = text[1:]
    whole = max(0, len(text) - 1) // size
    windows = tuple(text[at * size : (at + 1) * size] for at in range(whole))
    return windows, text[whole * size :]


class WindowedSession(ThinkingSession):
    """A session that reads the windows before the last one in its first pass.

    Args:
        inner: The session on the token that windows begin with.
        thinker: Reads the windows.
        before: That token alone.
        root: The last token of the text that was given.
        more: How many tokens of the last window stand before it.
        waits: What is committed once the vector stands; None: it does.
        done: Tokens committed since the text was given. Default 0.
        begun: Whether the given text begins with the token of all windows.
    """

    prompt = "a prompt that is read in windows"

    def __init__(
        self,
        inner: Session,
        thinker: WindowedPromptReader,
        before: tuple[int, ...],
        root: int,
        more: int,
        waits: Sequence[int] | None,
        done: int = 0,
        *,
        begun: bool,
    ) -> None:
        super().__init__(inner, thinker, before, root, more, waits, done)
        self._reader = thinker
        self._begun = begun

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        await self._thought()
        scores = await self._inner.prefill_prompt(want)
        if not want.prompt:
            return scores
        # The rows of earlier windows are computed once more, as their sessions are gone.
        _, rows = await self._reader.read_windows(want)
        # Of the last window: at the vector, and at its tokens but the root.
        rows += [(scores, at) for at in range(1, 2 + self._more + self._done)]
        # A text that does not begin with the token of windows has no row there.
        if not self._begun:
            rows = rows[1:]
        return PickedScores([scores for scores, _ in rows], [at for _, at in rows])

    def fork(self, choice: int | None = None) -> WindowedSession:
        twin = WindowedSession(
            self._inner.fork(choice),
            self._reader,
            self._before,
            self._roots[0],
            self._more,
            self._waits,
            self._done,
            begun=self._begun,
        )
        twin._draft = self._draft
        return twin
