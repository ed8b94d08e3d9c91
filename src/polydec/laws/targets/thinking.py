"""A law behind vectors that are computed from the prompt: thoughts, which nobody writes and nobody
reads but the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.row_scores import PickedScores
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.laws.targets.other_prompt_session import PrefixSession


class LatentPrefixMaker(Protocol):
    """Who makes the vectors. count: how many, at least 0."""

    @property
    def count(self) -> int: ...

    async def commit_thought(self, session: Session, prompt: tuple[int, ...]) -> None:
        """Commit the last token of a prompt, which was the root, and vectors behind it.

        It is called once, for a session on which nothing was committed. The next root stands behind
        the `count` vectors (models/sessions/soft.py).

        Args:
            session: The session on the prompt.
            prompt: Token ids of the prompt; the last one is the root.
        """
        ...


@dataclass(frozen=True)
class LatentPrefixTarget:
    """`target`, to which a text that begins with `prompt` is shown with thoughts before the
    prompt's last token: the mark that an answer begins with, as a rule. They are made once, in the
    first pass of a session, and belong to its text from then on: forks share them, and what was
    evicted is fed again as it was.

    prompt: at least two tokens. Any other text is read as it is. Rows of the prompt: that of the
    token before the last one is read behind the thoughts.

    Exact: the law of `target` behind these vectors, no approximation of it. Reduces to: `target`
    where the thinker makes no vector.
    """

    target: Target
    prompt: tuple[int, ...]
    thinker: LatentPrefixMaker

    def __post_init__(self) -> None:
        if len(self.prompt) < 2:
            raise RequestError(
                "the prompt has one token: thoughts stand before its last one, behind another"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: layers that run alone would read a text without its thoughts."""
        return 0

    def open_session(self, prompt: Sequence[int]) -> Session:
        n = len(self.prompt)
        if tuple(prompt[:n]) != self.prompt:
            return self.target.open_session(prompt)
        # The prompt is opened without its last token, before which the vectors stand.
        inner = self.target.open_session(prompt[: n - 1])
        return ThinkingSession(
            inner, self.thinker, self.prompt[:-1], prompt[-1], len(prompt) - n, prompt[n - 1 : -1]
        )


class ThinkingSession(PrefixSession):
    """A session that thinks before its first pass.

    Args:
        inner: The session on the prompt without its last token.
        thinker: Makes the vectors.
        before: The prompt without its last token.
        root: The last token of the text that was given.
        more: How many tokens of that text stand behind the prompt.
        waits: What is committed once the vectors stand; None: they do.
        done: Tokens committed since the text was given. Default 0.
    """

    _no_parts = "layers cannot run alone behind thoughts: these would be read without them"
    prompt = "a prompt with thoughts"

    def __init__(
        self,
        inner: Session,
        thinker: LatentPrefixMaker,
        before: tuple[int, ...],
        root: int,
        more: int,
        waits: Sequence[int] | None,
        done: int = 0,
    ) -> None:
        super().__init__(inner, (root, root), done)
        self._thinker = thinker
        self._before = before
        self._more = more
        if waits is None:
            self._waits = None
        else:
            self._waits = tuple(waits)

    async def _thought(self) -> None:
        """Think, unless that is done."""
        if self._waits is None:
            return
        await self._thinker.commit_thought(self._inner, self._before)
        # Tokens that were committed before the vectors stood follow them now.
        if self._waits:
            self._inner.commit_tokens(self._waits)
        self._waits = None

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        await self._thought()
        scores = await self._inner.prefill_prompt(want)
        if not want.prompt:
            return scores
        # The row of the token before the last one is read behind the vectors; earlier rows stay in
        # place.
        last = len(self._before) - 1
        count = self._thinker.count
        # Rows behind the vectors: of the prompt's last token, and of what was committed.
        behind = range(last + count, last + count + 1 + self._more + self._done)
        return PickedScores.rows_of(scores, (*range(last), *behind))

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft; the vectors are made first, unless they stand already.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        await self._thought()
        return await super().score_draft(draft, want)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        if self._waits is None:
            return super().commit_tokens(tokens)
        # The vectors come first in the cache, so the tokens wait.
        self._waits += tuple(tokens)
        self._done += len(tokens)
        return None

    def rewind_tokens(self, n: int) -> None:
        if self._waits is None or not 0 <= n <= self._done:
            return super().rewind_tokens(n)
        self._waits = self._waits[: len(self._waits) - n]
        self._done -= n
        return None

    def fork(self, choice: int | None = None) -> ThinkingSession:
        twin = ThinkingSession(
            self._inner.fork(choice),
            self._thinker,
            self._before,
            self._roots[0],
            self._more,
            self._waits,
            self._done,
        )
        twin._draft = self._draft
        return twin


def state_behind(scores: DraftScores, session: Session) -> Tensor:
    """Read the state of the last scored node, after the final norm, as the head reads it.

    Args:
        scores: Scores of a draft, with hidden states.
        session: The session that scored it.

    Returns:
        The state, shape ``[H]``, float32.

    Raises:
        RequestError: The model gives no states.
    """
    hidden_NH = scores.hidden_NH
    if hidden_NH is None:
        raise RequestError("the model shows no states: it cannot think in vectors")
    return session.normed_states(hidden_NH[-1:])[0].float()
