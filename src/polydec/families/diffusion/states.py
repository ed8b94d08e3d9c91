"""What several unmaskers share: the states of those that have none or keep a pace, and which tokens are sure."""

from __future__ import annotations

from torch import Tensor

from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.families.diffusion.types import Canvas, Look, Pace, best


@property
def approximate(self: object) -> Exactness:
    """`Unmasker.exactness` of one that promises no law."""
    return Exactness.APPROXIMATE


def no_state(self: object, canvas: Canvas) -> None:
    """`Unmasker.start` of one that remembers nothing."""


def still_none(self: object, state: None, count: int) -> None:
    """`Unmasker.enter` of one that remembers nothing."""


def no_pace(self: object, canvas: Canvas) -> Pace:
    """`Unmasker.start` of one that fills a fixed number of gaps a pass."""
    return 0, 0


def new_pace(self: object, state: Pace, count: int) -> Pace:
    """`Unmasker.enter` of one that fills a fixed number of gaps a pass."""
    return count, 0


def drawn(look: Look, rng: Rng) -> tuple[Look, tuple[int, ...], Tensor]:
    """The gaps of the block, a token drawn for each, and the model's own probability of it, R."""
    look = look.inside()
    tokens = look.tokens(rng)
    return look, tokens, look.confidence(tokens)


def surest(score_R: Tensor, bar: float) -> set[int]:
    """The best one, and all of at least `bar`."""
    return {*best(score_R, 1), *(i for i, c in enumerate(score_R) if float(c) >= bar)}
