"""The token that a drafter takes after a node: the only possible one, or a drawn one."""

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
    """One drawn token of a draft.

    Attributes:
        token: The token id.
        draw: Whether it was certain or drawn independently of its siblings.
        law: Log-probabilities that it was drawn from, shape ``[V]``. None: it was certain.
        q: Its probability, 0 to 1.
    """

    token: int
    draw: DrawKind
    law: Tensor | None
    q: float


def draw_draft_token(scores: DraftScores, node: int, pick: Pick, graded: bool = False) -> TokenDraw:
    """Take the token that follows a node of a draft.

    A token that is certain under the law is taken without reading the row; else ``pick`` draws one.

    Args:
        scores: Laws at the nodes of the draft.
        node: Index of the node that the token follows.
        pick: Draws a token id from log-probabilities of shape ``[V]``.
        graded: Whether a certain token counts with the draft model's own probability. Default: it
            counts as 1.

    Returns:
        The token, with the law and the probability that it was drawn with.
    """
    token = scores.certain_token(node)
    # A certain token needs no row: under a greedy draft no V numbers are written.
    if token is not None:
        return TokenDraw(
            token, DrawKind.CERTAIN, None, certain_draw_chance(scores, node, token, graded)
        )
    # The law goes with the token: an exact verifier tests the token against the very row it was
    # drawn from.
    law_V = scores.logprob_row(node)
    token = pick(law_V)
    return TokenDraw(token, DrawKind.INDEPENDENT, law_V, exp(law_V[token]))


def categorical_pick(rng: Rng) -> Pick:
    """A pick that draws each token with its probability, from the stream ``rng`` (once only)."""
    return lambda law_V: rng.draw_categorical(float64_probabilities(law_V))


def draw_target_token(scores: DraftScores, node: int, rng: Rng) -> int:
    """Take the target's own token after a node.

    Args:
        scores: The target's scores at the nodes of a draft.
        node: Index of the node.
        rng: The stream of this token; a row with one possible token draws nothing.

    Returns:
        The token id.
    """
    only = scores.certain_token(node)
    if only is None:
        return rng.draw_categorical(float64_probabilities(scores.logprob_row(node)))
    return only


def certain_draw_chance(scores: DraftScores, node: int, token: int, graded: bool) -> float:
    """The probability that a certain token of a draft counts with.

    Args:
        scores: Laws at the nodes of the draft. Where ``graded``, their rows before shaping must
            have been requested (`ScoreRequest.base`).
        node: Index of the node that the token follows.
        token: The token id.
        graded: Whether the budget asks for the draft model's probability before shaping.

    Returns:
        1, or where ``graded`` that probability.
    """
    if graded:
        return exp(scores.base.token_logprobs(node, (token,))[0])
    return 1.0
