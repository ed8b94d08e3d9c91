"""The token that a drafter takes after a node of its draft: the only one there is, or a drawn one."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import NamedTuple

from torch import Tensor

from polydec.core.law import probs
from polydec.core.protocols import Scores
from polydec.core.rng import Rng
from polydec.core.types import Draw

Pick = Callable[[Tensor], int]
"""A token drawn from log-probabilities (V)."""


class Drawn(NamedTuple):
    """law: the log-probabilities (V) that the token was drawn from, None where it was certain; q: its probability."""

    token: int
    draw: Draw
    law: Tensor | None
    q: float


def drawn(scores: Scores, node: int, pick: Pick, graded: bool = False) -> Drawn:
    """What follows `node`: a certain token unread, else one that `pick` draws from the law there."""
    token = scores.certain(node)
    if token is not None:
        return Drawn(token, Draw.CERTAIN, None, sure(scores, node, token, graded))
    law_V = scores.row(node)
    token = pick(law_V)
    return Drawn(token, Draw.INDEPENDENT, law_V, exp(law_V[token]))


def categorical(rng: Rng) -> Pick:
    """Each token with its probability."""
    return lambda law_V: rng.categorical(probs(law_V))


def sure(scores: Scores, node: int, token: int, graded: bool) -> float:
    """What a certain draw below `node` counts for: 1, or where the budget is graded the draft model's own probability of
    the token (scores.base must have been asked for)."""
    return exp(scores.base.logp(node, (token,))[0]) if graded else 1.0
