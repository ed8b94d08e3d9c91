"""The law that a search reads."""

from __future__ import annotations

from polydec.core.protocols import Target
from polydec.core.types import RowDetail
from polydec.laws.targets.shaped import ShapedTarget


def drop_greedy_rule(target: Target) -> Target:
    """The target without a last shaper that leaves the likeliest token only.

    At temperature 0 a law holds one text, and there is nothing to search for. A search at
    temperature 0 therefore means the law before that last step: the model's, under the request's
    penalties and masks, as in other engines.
    """
    if (
        not isinstance(target, ShapedTarget)
        or not target.shapers
        or target.shapers[-1].reads is not RowDetail.ARGMAX
    ):
        return target
    # Penalties and masks before the greedy rule stay.
    before = target.shapers[:-1]
    if before:
        return ShapedTarget(target.target, *before)
    return target.target
