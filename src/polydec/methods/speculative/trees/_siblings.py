"""The children of a node, one after another: a tree that grows by decisions asks for the next one when it wants it."""

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
    """q: its probability under the draft; share: the same among what the siblings before it left."""

    token: int
    q: float
    share: float
    law: Tensor | None
    draw: DrawKind


def draw_siblings(scores: DraftScores, node: int, rng: Rng, most: int) -> Iterator[SiblingDraw]:
    """At most `most` children of a node, drawn without replacement, each only when it is asked for; fewer where fewer have
    weight. Under a greedy draft they are certain: its token, then the likeliest others of the model before shaping, whose
    probabilities count (scores.base must have been asked for)."""
    only = scores.certain(node)
    if only is not None:
        tokens = (only, *[x for x in scores.base.topk(node, most)[0] if x != only])[:most]
        left = 1.0
        for x, logp in zip(tokens, scores.base.logp(node, tokens), strict=True):
            q = exp(logp)
            yield SiblingDraw(x, q, q / left if q < left else 1.0, None, DrawKind.CERTAIN)
            left -= q
        return
    law_V = scores.row(node)
    q_V = float64_probabilities(law_V)
    left_V = q_V.clone()
    for j in range(most):
        total = float(left_V.sum())
        if not total > 0.0:
            return
        token = rng.at(j).categorical(left_V)
        yield SiblingDraw(
            token,
            float(q_V[token]),
            min(1.0, float(left_V[token]) / total),
            law_V,
            DrawKind.WITHOUT,
        )
        left_V[token] = 0.0
