"""The protocols of denoising: unmasker, refresh rule and ending rule.

A method implements one of these; nothing in the package asks which class it got.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import Exactness, TextEdit
from polydec.methods.diffusion.loop.types import UnmaskerView

U = TypeVar("U")


class Unmasker(Protocol[U]):
    """Decides which gaps are filled after a pass, and with which tokens.

    A pure function of laws and its own state.

    Attributes:
        everywhere: It looks at the gaps after the block, too.
        exactness: LAW where the text is a draw from the joint law of a model whose conditionals are
            consistent.
    """

    everywhere: ClassVar[bool]

    @property
    def exactness(self) -> Exactness: ...
    def start_state(self, canvas: Canvas) -> U:
        """The state before the first pass of an answer."""
        ...

    def enter_block(self, state: U, count: int) -> U:
        """Begin a block.

        Args:
            state: State after the passes so far.
            count: Gaps of the block.

        Returns:
            The state with which the block begins.
        """
        ...

    def choose_edit(self, state: U, look: UnmaskerView, rng: Rng) -> tuple[TextEdit, U]:
        """Choose what a pass writes: tokens for at least one of `look.rows`, and for nothing else.

        Args:
            state: State before the pass.
            look: What the pass shows: canvas, block, and the laws at its gaps.
            rng: Random stream of the answer. Draws are made at ``rng.child_stream("token", position, step)``
                and ``rng.child_stream("order", step)``.

        Returns:
            The tokens to write, and the state after this pass.
        """
        ...


class KnownTokenRule(Protocol):
    """Says at which known tokens a pass is asked for the model's laws, besides those at gaps."""

    def known_positions(self, state: Any, block: range) -> Sequence[int]:
        """Return positions that may be asked for; gaps and what is not fed are left out of them.

        Args:
            state: State of the unmasker before the pass.
            block: Positions that may be filled now.
        """
        ...


class CanvasRefresh(Protocol):
    """Decides which positions a pass feeds. Gaps that are not fed cannot be filled by it."""

    def fed_positions(
        self, canvas: Canvas, before: Canvas | None, block: range, step: int
    ) -> Sequence[int]:
        """Return the positions to feed, ascending, with a gap of the block among them.

        Under a block-causal model the loop leaves out what lies after the model's own block.

        Args:
            canvas: Prompt and answer that the pass sees; None is a gap.
            before: Canvas of the pass before; None in the first pass of an answer, which feeds all.
            block: Positions that may be filled now.
            step: Passes of this block before this one, from 0.
        """
        ...


class FeedingPlan(Protocol):
    """Says which positions the next pass feeds, where an unmasker has planned several passes."""

    def planned_positions(self, state: Any) -> Sequence[int] | None:
        """Return the positions, ascending, with a gap of the block among them.

        Args:
            state: State of the unmasker before the pass.

        Returns:
            The positions; None where there is no plan, and the refresh rule decides.
        """
        ...


class EndingRule(Protocol):
    """Finds where an answer ends before its end is written.

    Attributes:
        everywhere: It looks at the gaps after the block, too.
        spare: Gaps after the end that stay on the canvas.
    """

    everywhere: ClassVar[bool]

    @property
    def spare(self) -> int: ...
    def find_end(self, look: UnmaskerView, edit: TextEdit) -> int | None:
        """Return the position of the answer's last token, or None where it is not known.

        That token becomes an end (EOS, a stop id) if it is none. What lies after it is cut off the
        canvas, but for `spare` gaps, and never fed again.

        Args:
            look: Laws of the pass, before its edit.
            edit: Tokens that the pass writes.
        """
        ...
