"""The roles of denoising. A method implements one of these; nothing in the package asks which class it got."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from polydec.core.rng import Rng
from polydec.core.types import Edit, Exactness, Vocab
from polydec.families.diffusion.types import Canvas, Look

U = TypeVar("U")


class Board(Protocol):
    """A canvas of fixed length under one model, with the keys and values of its last passes."""
    async def score(self, canvas: Canvas, rows: Sequence[int], feed: range) -> Tensor:
        """The model's log-weights at these positions (ascending, inside `feed`), RV in float64, -inf at the mask token. Only
        the positions `feed` run; they see the others as these were when they were last fed. The first pass feeds all."""
        ...

    def close(self) -> None: ...


class Denoiser(Protocol):
    """A law over a canvas with gaps: of each gap, given all that is known."""
    family: ClassVar[str]
    """"diffusion": what tells it from an autoregressive model."""
    @property
    def vocab(self) -> Vocab: ...
    def open(self, length: int) -> Board:
        """For a canvas of `length` positions. Raises ValueError where it is longer than the model's context."""
        ...


class Unmasker(Protocol[U]):
    """Which gaps are filled after a pass, and with what. A pure function of laws and its state.

    everywhere: it looks at the gaps behind the block too; exactness: LAW where the text is a draw from the joint law of a
    model whose conditionals are consistent.
    """
    everywhere: ClassVar[bool]
    @property
    def exactness(self) -> Exactness: ...
    def start(self, canvas: Canvas) -> U:
        """The state before the first pass of an answer."""
        ...

    def enter(self, state: U, count: int) -> U:
        """A block of `count` gaps begins."""
        ...

    def choose(self, state: U, look: Look, rng: Rng) -> tuple[Edit, U]:
        """Writes into at least one of look.rows, and nothing else. Draws are made at rng.at("token", position, step) and
        rng.at("order", step)."""
        ...


class Refresh(Protocol):
    """Which positions a pass feeds."""
    def feed(self, length: int, block: range, step: int) -> range:
        """length: of the canvas; step: passes of this block before this one. Holds the whole block; the first pass of an
        answer feeds all."""
        ...
