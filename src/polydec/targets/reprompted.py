"""A law that reads another prompt than the one that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import Scores, Session, Target
from polydec.core.types import Draft, Vocab, Want
from polydec.targets.delegating import Delegating


@dataclass(frozen=True)
class Reprompted:
    """`target`, to which a text that begins with `prompt` is shown with `instead` in its place; any other text as it is. It is
    the second stream of a contrast: the same answer behind a prompt without the condition, without the passage, without the
    examples. The two may differ in length and in their last token.

    prompt, instead: at least one token each. Rows of the prompt (prefill with want.prompt) are those of `instead`.

    Exact: the law of `target` behind another prompt, no approximation of it.
    Reduces to: `target` where the prompts are the same.
    """

    target: Target
    prompt: tuple[int, ...]
    instead: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt or not self.instead:
            raise RequestError("prompt and its replacement need at least one token each")

    @property
    def vocab(self) -> Vocab:
        return self.target.vocab

    @property
    def layers(self) -> int:
        """0: nobody needs layers of it alone."""
        return 0

    def open(self, prompt: Sequence[int]) -> RepromptedSession:
        n = len(self.prompt)
        text = (*self.instead, *prompt[n:]) if tuple(prompt[:n]) == self.prompt else tuple(prompt)
        return RepromptedSession(self.target.open(text), (prompt[-1], text[-1]))


class RepromptedSession(Delegating):
    """roots: the last token of the prompt that was given, and of the one that is read: while nothing is committed, the one
    stands for the other at the root of a draft. done: tokens committed since the prompt."""

    def __init__(self, inner: Session, roots: tuple[int, int], done: int = 0) -> None:
        self._inner, self._roots, self._done = inner, roots, done
        self._draft: Draft | None = None

    def _read(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens that begin with the root, as the inner session knows them."""
        given, read = self._roots
        return (
            (read, *tokens[1:])
            if not self._done and tokens and tokens[0] == given
            else tuple(tokens)
        )

    async def score(self, draft: Draft, want: Want) -> Scores:
        self._draft = draft
        return await self._inner.score(replace(draft, token=self._read(draft.token)), want)

    def commit(self, tokens: Sequence[int]) -> None:
        self._inner.commit(self._read(tokens))
        self._done += len(tokens)
        self._draft = None

    def keep(self, nodes: Sequence[int], root: int = 0) -> Draft:
        left, draft = self._inner.keep(nodes, root), self._draft
        assert draft is not None, "the inner session keeps what it never scored"
        self._done += draft.depth[root]
        self._draft = replace(left, token=(draft.token[root], *left.token[1:]))
        return self._draft

    def memory(self) -> tuple[Tensor, Tensor]:
        raise RequestError(
            "keys cannot be read behind another prompt than the one that is given: they stand at other places"
        )

    def bend(self, draft: Draft, scores: Scores) -> Scores:
        return self._inner.bend(replace(draft, token=self._read(draft.token)), scores)

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self._done:
            raise RequestError(
                f"n is {n}: it must lie in 0 to {self._done}, the tokens since the prompt that another stands for"
            )
        self._inner.rewind(n)
        self._done -= n
        self._draft = None

    def fork(self, choice: int | None = None) -> RepromptedSession:
        twin = RepromptedSession(self._inner.fork(choice), self._roots, self._done)
        twin._draft = self._draft
        return twin

    def part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        raise RequestError("layers cannot run alone behind another prompt")
