"""One token from a law and a constraint, by drawing tokens and looking at the drawn ones only.

Both ways to draw give a token x with a weight w such that E[w · 1(x = v)] = p(v) where v is allowed, and 0 elsewhere. So the
token is drawn from p restricted to what is allowed, and the weight is an unbiased estimate of the mass of that.

Source: Lipkin et al., "Fast controlled generation from language models with adaptive weighted rejection sampling" (2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from polydec.core.rng import Rng

Allows = Callable[[int], bool]
Mask = Callable[[], Tensor]


@dataclass(frozen=True)
class RejectionDraw:
    """token: None where no allowed token has weight (the weight is 0 then); checks: how many tokens were looked at; masked:
    whether all of them were, at once."""

    token: int | None
    weight: float
    checks: int
    masked: bool = False


def draw_by_recursive_rejection(
    p_V: Tensor, allows: Allows, mask: Mask, rng: Rng, looks: int = 32
) -> RejectionDraw:
    """Tokens are drawn without replacement until one is allowed, and the one behind it is looked at as well: two looks where
    the first is allowed. After `looks` (1 or more) rejections the mask is computed: what is allowed of the rest is then known,
    and takes the place of its estimate. p_V: probabilities, float64."""
    left_V = p_V.clone()
    weight = 1.0
    checks = 0
    while checks < looks and float(left_V.sum()) > 0.0:
        token = rng.at("token", checks).categorical(left_V)
        share = float(left_V[token] / left_V.sum())
        left_V[token] = 0.0
        checks += 1
        last = not float(left_V.sum()) > 0.0
        if allows(token):
            if last:
                return RejectionDraw(token, weight, checks)
            both = allows(rng.at("token", checks).categorical(left_V))
            return RejectionDraw(token, weight if both else weight * share, checks + 1)
        weight *= 0.0 if last else 1.0 - share
    good_V = left_V * mask()
    rest = float(left_V.sum())
    mass = float(good_V.sum())
    if not weight * mass > 0.0:
        return RejectionDraw(None, 0.0, checks, rest > 0.0)
    return RejectionDraw(
        rng.at("token", checks).categorical(good_V), weight * mass / rest, checks, True
    )


def draw_by_geometric_rejection(
    p_V: Tensor, allows: Allows, mask: Mask, rng: Rng, accepts: int = 2, looks: int = 32
) -> RejectionDraw:
    """Tokens are drawn with replacement until `accepts` (2 or more) were allowed; the first of these is the token. Nothing is
    looked at twice: how often what was rejected would have been drawn again is drawn as a number. After `looks` (1 or more)
    looks the mask is computed, and so are the numbers of all rejections to come. p_V: probabilities, float64."""
    left_V = p_V / p_V.sum()
    known = dict[int, bool]()
    rejected = 0
    accepted = list[int]()
    good_V: Tensor | None = None
    for draw in range(looks + accepts):
        live = float((left_V if good_V is None else good_V).sum())
        if len(accepted) == accepts or not live > 0.0:
            break
        if live < 1.0:  # rejections before the next draw that is looked at
            rejected += int(math.log(1.0 - rng.at("again", draw).uniform()) / math.log1p(-live))
        token = rng.at("token", draw).categorical(left_V if good_V is None else good_V)
        if good_V is None and token not in known:
            known[token] = allows(token)
        if known.get(token, True):
            accepted.append(token)
        else:
            rejected += 1
            left_V[token] = 0.0
            if len(known) >= looks:
                good_V = left_V * mask()
    if not accepted:
        return RejectionDraw(None, 0.0, len(known), good_V is not None)
    weight = min(accepts - 1, len(accepted)) / (len(accepted) + rejected - 1)
    return RejectionDraw(accepted[0], weight, len(known), good_V is not None)
