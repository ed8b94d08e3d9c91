"""The roles of insertion: a model that says what is missing in a text, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from polydec.core.types import Vocab
from polydec.families.insertion.types import Offer


class Slate(Protocol):
    """A text under one model. It only grows."""

    async def score(self, text: Sequence[int], slots: Sequence[int]) -> Offer:
        """What the model would put behind the tokens at these positions of the text (ascending, at least one). Every pass
        feeds the whole text: a token that is put in changes what all others mean."""
        ...

    def close(self) -> None: ...


class Inserter(Protocol):
    """A law over the next insertion into a text, and over whether there is one."""

    family: ClassVar[str]
    """"insertion": what tells it from models that continue texts or fill canvases."""

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        ...

    @property
    def vocab(self) -> Vocab: ...
    def open(self, length: int) -> Slate:
        """For a text of `length` tokens at most. Raises PolydecError where that is longer than the model's context."""
        ...
