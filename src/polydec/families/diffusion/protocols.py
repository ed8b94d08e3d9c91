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
    """A canvas under one model, with the keys and values of its last passes. It may become shorter, and grows only by positions
    that the pass feeds."""

    async def score(self, canvas: Canvas, rows: Sequence[int], feed: Sequence[int]) -> Tensor:
        """The model's log-weights at these positions (ascending, inside `feed`; where a token stands they are what the model
        says there, having seen it), RV in float64, -inf at the mask token. Only
        the positions `feed` (ascending) run; they see the others as these were when they were last fed. So the first pass
        feeds all that the model sees: under a block-causal model everything up to the end of a block."""
        ...

    async def read(self, canvas: Canvas, feed: Sequence[int]) -> Tensor:
        """The same pass, asked for states: of each position of `feed` the state whose law `Denoiser.laws` gives, [feed, H]."""
        ...

    def fork(self) -> Board:
        """A twin that knows what the passes so far have left; from here on each goes its own way."""
        ...

    def close(self) -> None: ...


class Denoiser(Protocol):
    """A law over a canvas with gaps: of each gap, given all that is known."""

    family: ClassVar[str]
    """"diffusion": what tells it from an autoregressive model."""

    @property
    def block(self) -> int:
        """Positions of the model's own blocks, counted from the canvas's start: a position sees its block and those before it.
        0: every position sees all."""
        ...

    @property
    def context(self) -> int:
        """Positions of the longest canvas."""
        ...

    @property
    def boundary(self) -> int | None:
        """The id that stood between a text and the gaps behind it when the model was trained; None: none did."""
        ...

    @property
    def vocab(self) -> Vocab: ...
    def open(self, length: int, prompt: int = 0) -> Board:
        """For a canvas of `length` positions, of which the first `prompt` are the prompt. Raises PolydecError where it is
        longer than the model's context."""
        ...

    def embed(self, canvas: Sequence[int | None]) -> Tensor:
        """What enters the first layer for each token, and for gaps, [n, H], fp32."""
        ...

    def laws(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-weights at these positions, whose states these are, as `Board.score` gives them."""
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
    """Which positions a pass feeds. Gaps that are not fed cannot be filled by it."""

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> Sequence[int]:
        """Ascending positions, a gap of the block among them. canvas: what is fed; before: what the pass before was given, None
        for the first pass of an answer, which feeds all; block: where gaps are filled now; step: passes of this block before
        this one. Under a block-causal model what lies behind the model's own block is left out by the loop."""
        ...


class Ending(Protocol):
    """Where an answer ends before its end is written. spare: gaps behind the end that stay on the canvas."""

    everywhere: ClassVar[bool]

    @property
    def spare(self) -> int: ...
    def find(self, look: Look, edit: Edit) -> int | None:
        """The position of the answer's last token, which becomes an end (EOS, a stop id) if it is none; what lies behind it is
        cut off the canvas, but for `spare` gaps, and never fed again. None: not known. look: before the edit."""
        ...
