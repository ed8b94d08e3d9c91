"""The roles of denoising. A method implements one of these; nothing in the package asks which class it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.types import UnmaskerView

U = TypeVar("U")


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

    def choose(self, state: U, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, U]:
        """Writes into at least one of look.rows, and nothing else. Draws are made at rng.at("token", position, step) and
        rng.at("order", step)."""
        ...


class CanvasRefresh(Protocol):
    """Which positions a pass feeds. Gaps that are not fed cannot be filled by it."""

    def feed(self, canvas: Canvas, before: Canvas | None, block: range, step: int) -> Sequence[int]:
        """Ascending positions, a gap of the block among them. canvas: what is fed; before: what the pass before was given, None
        for the first pass of an answer, which feeds all; block: where gaps are filled now; step: passes of this block before
        this one. Under a block-causal model what lies behind the model's own block is left out by the loop."""
        ...


class EndingRule(Protocol):
    """Where an answer ends before its end is written. spare: gaps behind the end that stay on the canvas."""

    everywhere: ClassVar[bool]

    @property
    def spare(self) -> int: ...
    def find(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        """The position of the answer's last token, which becomes an end (EOS, a stop id) if it is none; what lies behind it is
        cut off the canvas, but for `spare` gaps, and never fed again. None: not known. look: before the edit."""
        ...
