"""Helpers that unmaskers share: trivial states, a pace of fixed quotas, and sure tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from polydec.core.canvas_law import Canvas
from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.methods.diffusion.loop.types import Pace, UnmaskerView, best_indices

ONE_A_PASS: Mapping[str, str] = {"parallel": "it fills one gap a pass"}
"""Why a contract sees no pass of an unmasker that fills several gaps."""


class SteppedUnmasker(Protocol):
    """An unmasker that is given a number of passes for a block, 0: one for each gap."""

    @property
    def steps(self) -> int: ...


@property
def unexercised_by_steps(self: SteppedUnmasker) -> Mapping[str, str]:
    """`unexercised` of an unmasker that spreads the gaps of a block evenly over its passes."""
    if self.steps == 0:
        return ONE_A_PASS
    if self.steps == 1:
        return {"masked_again": "it fills every gap of a block in one pass"}
    return {}


@property
def approximate_exactness(self: object) -> Exactness:
    """`Unmasker.exactness` of one that promises no law."""
    return Exactness.APPROXIMATE


def no_state(self: object, canvas: Canvas) -> None:
    """Begin an answer: `Unmasker.start_state` of a rule that remembers nothing.

    Args:
        canvas: The canvas; not needed.
    """


def still_none(self: object, state: None, count: int) -> None:
    """Begin a block: `Unmasker.enter_block` of a rule that remembers nothing.

    Args:
        state: None.
        count: Gaps of the block; not needed.
    """


def no_pace(self: object, canvas: Canvas) -> Pace:
    """Begin an answer: `Unmasker.start_state` of a rule that fills a fixed number of gaps a pass.

    Args:
        canvas: The canvas; not needed.

    Returns:
        The pace of no block: 0 gaps, 0 passes.
    """
    return 0, 0


def new_pace(self: object, state: Pace, count: int) -> Pace:
    """Begin a block: `Unmasker.enter_block` of a rule that fills a fixed number of gaps a pass.

    Args:
        state: Pace of the block before; not needed.
        count: Gaps of the block.

    Returns:
        The pace: gaps of the block, and no pass yet.
    """
    return count, 0


def draw_block_tokens(look: UnmaskerView, rng: Rng) -> tuple[UnmaskerView, tuple[int, ...], Tensor]:
    """Draw a token for each gap of the block.

    Args:
        look: What the pass shows.
        rng: Random stream of the answer.

    Returns:
        The rows of the block alone, their drawn tokens, and the model's own probability of each,
        shape ``[R]``.
    """
    # Only the block may be filled, so tokens of later gaps need not be drawn.
    look = look.inside_block()
    tokens = look.draw_tokens(rng)
    return look, tokens, look.token_confidence(tokens)


def surest_gaps(score_R: Tensor, bar: float) -> set[int]:
    """Return the rows whose score reaches a bar, and the best row in any case.

    Args:
        score_R: Confidence of each row, shape ``[R]``.
        bar: Least score.

    Returns:
        Row indices, at least one.
    """
    # The best one is always among them: every pass must fill a gap.
    return {*best_indices(score_R, 1), *(i for i, c in enumerate(score_R) if float(c) >= bar)}
