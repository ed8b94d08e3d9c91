"""The token that a drafter takes after a node of its draft: the only one there is, or a drawn one."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import NamedTuple

from torch import Tensor

from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import DrawKind

Pick = Callable[[Tensor], int]
"""A token drawn from log-probabilities (V)."""


class TokenDraw(NamedTuple):
    """law: the log-probabilities (V) that the token was drawn from, None where it was certain; q: its probability."""

    token: int
    draw: DrawKind
    law: Tensor | None
    q: float


def draw_draft_token(scores: DraftScores, node: int, pick: Pick, graded: bool = False) -> TokenDraw:
    """What follows `node`: a certain token unread, else one that `pick` draws from the law there."""
    token = scores.certain(node)
    if token is not None:
        return TokenDraw(
            token, DrawKind.CERTAIN, None, certain_draw_chance(scores, node, token, graded)
        )
    law_V = scores.row(node)
    token = pick(law_V)
    return TokenDraw(token, DrawKind.INDEPENDENT, law_V, exp(law_V[token]))


def categorical_pick(rng: Rng) -> Pick:
    """Each token with its probability."""
    return lambda law_V: rng.categorical(float64_probabilities(law_V))


def certain_draw_chance(scores: DraftScores, node: int, token: int, graded: bool) -> float:
    """What a certain draw below `node` counts for: 1, or where the budget is graded the draft model's own probability of
    the token (scores.base must have been asked for)."""
    if graded:
        return exp(scores.base.logp(node, (token,))[0])
    return 1.0
