"""A law behind a prompt of which some tokens are vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.row_scores import PickedScores
from polydec.core.types import ScoreRequest, TokenVocabulary
from polydec.laws.targets.other_prompt_session import PrefixSession

if TYPE_CHECKING:
    from torch import Tensor

    from polydec.models.nets.grid_positions import ImageGrid


@dataclass(frozen=True)
class SoftPromptTarget:
    """A target that reads a prompt in which some tokens are vectors.

    A text that begins with `prompt` is read with `instead` in its place. This is the one place that
    decides what is read: whoever works with words is given `prompt`, and the model reads `instead`.

    Exact: the law of `target` behind these vectors, no approximation of it.
    Reduces to: `target` where no vector stands in the prompt.

    Attributes:
        target: The law to read.
        prompt: Token ids of the prompt, at least one.
        instead: Ids of which some stand for vectors (models/sessions/soft.py); the last one is that
            of `prompt`.
        rows: For every token of the prompt but the last, the place in `instead` at which its row is
            read, ascending.
    """

    target: Target
    prompt: tuple[int, ...]
    instead: tuple[int, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prompt or not self.instead or self.prompt[-1] != self.instead[-1]:
            raise RequestError(
                "a prompt and what is read in its place must end with the same token"
            )
        if len(self.rows) != len(self.prompt) - 1:
            raise RequestError("rows must name a place for every token of the prompt but the last")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return self.target.layers

    @property
    def adapts(self) -> bool:
        """Whether rows of a pass can run with an adapter."""
        return getattr(self.target, "adapts", False)

    @property
    def moves_tokens(self) -> bool:
        """Whether a text's tokens stand at other places than the cache has them."""
        return self.instead != self.prompt

    def open_session(self, prompt: Sequence[int]) -> Session:
        n = len(self.prompt)
        if tuple(prompt[:n]) != self.prompt or not self.moves_tokens:
            return self.target.open_session(prompt)
        # Tokens behind the prompt stand as many places behind `instead`.
        more = range(len(self.instead) - 1, len(self.instead) - 1 + len(prompt) - n)
        inner = self.target.open_session((*self.instead, *prompt[n:]))
        return SoftenedSession(inner, prompt[-1], (*self.rows, *more))


class SoftenedSession(PrefixSession):
    """A session on a prompt with vectors.

    Args:
        inner: The session that reads the vectors.
        root: The last token of the text that was given.
        rows: For every token of the text but the last, the place at which its row is read.
        done: Tokens committed since the prompt. Default 0.
    """

    prompt = "a prompt with vectors"

    def __init__(self, inner: Session, root: int, rows: tuple[int, ...], done: int = 0) -> None:
        super().__init__(inner, (root, root), done)
        self._rows = rows

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        scores = await self._inner.prefill_prompt(want)
        if want.prompt:
            return PickedScores.rows_of(scores, self._rows)
        return scores

    def text_vectors(self) -> Mapping[int, Tensor]:
        read = self._inner.text_vectors()
        return {at: read[row] for at, row in enumerate(self._rows) if row in read}

    def text_grids(self) -> Sequence[ImageGrid]:
        # An image of which nothing is seen in the given prompt has no place there.
        return tuple(
            replace(grid, first=self._rows.index(grid.first))
            for grid in self._inner.text_grids()
            if grid.first in self._rows
        )

    def fork(self, choice: int | None = None) -> SoftenedSession:
        twin = SoftenedSession(self._inner.fork(choice), self._roots[0], self._rows, self._done)
        twin._draft = self._draft
        return twin
