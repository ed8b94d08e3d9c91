"""The children of a node, one after another.

A tree that grows by decisions asks for the next child when it wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import NamedTuple

from torch import Tensor

from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores
from polydec.core.rng import Rng
from polydec.core.types import DrawKind


class SiblingDraw(NamedTuple):
    """One child of a node.

    Attributes:
        token: The token id.
        q: Its probability under the draft.
        share: Its probability among what the siblings before it left, 0 to 1.
        law: Log-probabilities that it was drawn from, shape ``[V]``. None: it is certain.
        draw: Whether it is certain or drawn without replacement.
    """

    token: int
    q: float
    share: float
    law: Tensor | None
    draw: DrawKind


def draw_siblings(scores: DraftScores, node: int, rng: Rng, most: int) -> Iterator[SiblingDraw]:
    """Draw the children of a node without replacement, each only when the caller asks for it.

    Under a greedy draft they are certain: its own token, then the likeliest others of the model
    before shaping, whose probabilities count.

    Args:
        scores: Laws at the nodes of the draft, with the model's rows before shaping
            (`ScoreRequest.base`).
        node: Index of the node.
        rng: Random stream of this node; the j-th child is drawn at ``rng.child_stream(j)``.
        most: Most children.

    Yields:
        Children in the order drawn, fewer than `most` where fewer tokens have weight.
    """
    only = scores.certain_token(node)
    if only is not None:
        tokens = (only, *[x for x in scores.base.likeliest_tokens(node, most)[0] if x != only])[
            :most
        ]
        left = 1.0
        for x, logp in zip(tokens, scores.base.token_logprobs(node, tokens), strict=True):
            q = exp(logp)
            # `left` is 1 - the sum of the earlier siblings' probabilities; rounding may take it
            # below q, where the share is 1.
            yield SiblingDraw(x, q, q / left if q < left else 1.0, None, DrawKind.CERTAIN)
            left -= q
        return
    # All siblings carry this one tensor: a verifier sees by identity that they were drawn from one
    # law.
    law_V = scores.logprob_row(node)
    q_V = float64_probabilities(law_V)
    # Drawn without replacement: each token that was taken leaves the law, and the rest is scaled
    # up.
    left_V = q_V.clone()
    for j in range(most):
        total = float(left_V.sum())
        # The law had fewer tokens than were asked for.
        if not total > 0.0:
            return
        token = rng.child_stream(j).draw_categorical(left_V)
        yield SiblingDraw(
            token,
            float(q_V[token]),
            # Rounding may lift a share slightly above 1.
            min(1.0, float(left_V[token]) / total),
            law_V,
            DrawKind.WITHOUT,
        )
        left_V[token] = 0.0
