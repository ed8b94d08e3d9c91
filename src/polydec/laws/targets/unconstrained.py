"""The law that a constraint has not bent."""

from __future__ import annotations

from polydec.core.protocols import Target
from polydec.laws.targets.shaped import ShapedTarget


def drop_constraint_rule(target: Target) -> Target:
    """The target without the shaper that keeps its texts within a language (it says so by its
    `language`), for methods that weigh whole texts: a mask makes what is left add up to 1 at every
    token, whatever comes after.
    """
    if not isinstance(target, ShapedTarget):
        return target
    left = [s for s in target.shapers if getattr(s, "language", None) is None]
    if left:
        return ShapedTarget(target.target, *left)
    return target.target
