"""Draw one token from a law and a constraint by looking at drawn tokens only.

Both ways to draw give a token x with a weight w such that E[w · 1(x = v)] = p(v) where v is
allowed, and 0 elsewhere. So the token is drawn from p restricted to what is allowed, and the weight
is an unbiased estimate of the mass of that.

Source: Lipkin et al., "Fast controlled generation from language models with adaptive weighted
rejection sampling" (2025).
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
    """A token that was drawn, with its weight.

    Attributes:
        token: The token; None where no allowed token has weight.
        weight: Unbiased estimate of the allowed mass, 0 or more; 0 without a token.
        checks: Tokens that were looked at one by one.
        masked: Whether all tokens were looked at, at once.
    """

    token: int | None
    weight: float
    checks: int
    masked: bool = False


def draw_by_recursive_rejection(
    p_V: Tensor, allows: Allows, mask: Mask, rng: Rng, looks: int = 32
) -> RejectionDraw:
    """Draw without replacement until a token is allowed, and look at one more for the weight.

    So there are two looks where the first is allowed. After `looks` rejections the mask is
    computed: what is allowed of the rest is then known, and takes the place of its estimate.

    Args:
        p_V: Probabilities, shape ``[V]``, float64.
        allows: Says of one token whether it is allowed.
        mask: Says it of all tokens, bool, shape ``[V]``.
        rng: Random stream of this draw.
        looks: Rejections before the mask is computed, at least 1. Default 32.
    """
    left_V = p_V.clone()
    weight = 1.0
    checks = 0
    while checks < looks and float(left_V.sum()) > 0.0:
        token = rng.child_stream("token", checks).draw_categorical(left_V)
        share = float(left_V[token] / left_V.sum())
        left_V[token] = 0.0
        checks += 1
        last = not float(left_V.sum()) > 0.0
        if allows(token):
            if last:
                return RejectionDraw(token, weight, checks)
            # The allowed mass is Z = s + (1 - s) Z', with s the share of the accepted token and Z'
            # the allowed mass of the rest. A second draw estimates Z': 1 where it is allowed, and
            # then Z is 1; else Z is s.
            both = allows(rng.child_stream("token", checks).draw_categorical(left_V))
            return RejectionDraw(token, weight if both else weight * share, checks + 1)
        # A rejected token of share s leaves Z = (1 - s) Z'.
        weight *= 0.0 if last else 1.0 - share
    # The mask makes Z' exact: allowed mass over all mass that is left.
    good_V = left_V * mask()
    rest = float(left_V.sum())
    mass = float(good_V.sum())
    if not weight * mass > 0.0:
        return RejectionDraw(None, 0.0, checks, rest > 0.0)
    return RejectionDraw(
        rng.child_stream("token", checks).draw_categorical(good_V),
        weight * mass / rest,
        checks,
        True,
    )


def draw_by_geometric_rejection(
    p_V: Tensor, allows: Allows, mask: Mask, rng: Rng, accepts: int = 2, looks: int = 32
) -> RejectionDraw:
    """Draw with replacement until enough tokens were allowed; the first of these is the token.

    Nothing is looked at twice: how often what was rejected would have been drawn again is drawn as
    a number. After `looks` looks the mask is computed, and so are the numbers of all rejections to
    come.

    Args:
        p_V: Probabilities, shape ``[V]``, float64.
        allows: Says of one token whether it is allowed.
        mask: Says it of all tokens, bool, shape ``[V]``.
        rng: Random stream of this draw.
        accepts: Allowed draws that are waited for, at least 2. Default 2.
        looks: Looks before the mask is computed, at least 1. Default 32.
    """
    left_V = p_V / p_V.sum()
    known = dict[int, bool]()
    rejected = 0
    accepted = list[int]()
    good_V: Tensor | None = None
    for draw in range(looks + accepts):
        live = float((left_V if good_V is None else good_V).sum())
        if len(accepted) == accepts or not live > 0.0:
            break
        if live < 1.0:
            # Geometric: the number of draws of known rejected tokens, which have mass 1 - live.
            rejected += int(
                math.log(1.0 - rng.child_stream("again", draw).draw_uniform()) / math.log1p(-live)
            )
        token = rng.child_stream("token", draw).draw_categorical(
            left_V if good_V is None else good_V
        )
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
    # The unbiased estimate of a success rate from draws up to the k-th success: (k - 1) / (n - 1).
    weight = min(accepts - 1, len(accepted)) / (len(accepted) + rejected - 1)
    return RejectionDraw(accepted[0], weight, len(known), good_V is not None)
