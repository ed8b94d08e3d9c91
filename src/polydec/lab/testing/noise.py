"""Gumbel noise that is enumerated instead of drawn, for three tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from polydec.core.law import float64_probabilities

Point = tuple[float, float, float]
CORNERS: tuple[Point, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
NOTHING = 1e-13
"""A share of the noise below this is rounding, not an outcome."""


class OutcomeChooser(Protocol):
    """Which of several outcomes is taken in this execution."""

    def draw_outcome(self, p: list[float]) -> int: ...


def double_polygon_area(polygon: list[Point]) -> float:
    """Compute twice the area of a polygon, seen along the third axis.

    Args:
        polygon: Its corners, in order around it.

    Returns:
        The area, 0 or more.
    """
    return abs(
        sum(
            a[0] * b[1] - b[0] * a[1]
            for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True)
        )
    )


def clip_polygon(polygon: list[Point], side: Point) -> list[Point]:
    """Cut a convex polygon at a plane through the origin.

    Args:
        polygon: Its corners, in order around it.
        side: Normal of the plane; what lies on its side stays.

    Returns:
        The corners of the part where side · point >= 0; none where nothing is left.
    """
    out: list[Point] = []
    height = [sum(s * x for s, x in zip(side, p, strict=True)) for p in polygon]
    for i, (p, h) in enumerate(zip(polygon, height, strict=True)):
        q = polygon[i - 1]
        g = height[i - 1]
        # The edge from q to p crosses the plane: a new corner at the crossing.
        if (h > 0.0 > g) or (h < 0.0 < g):
            t = g / (g - h)
            x, y, z = (a + t * (b - a) for a, b in zip(q, p, strict=True))
            out.append((x, y, z))
        if h >= 0.0:
            out.append(p)
    return out


class SimplexNoise:
    """Stands in for rng.GumbelNoise over three tokens.

    argmax(log p + Gumbel) is argmin(e / p) of three exponential variables e, which depends on their
    direction only, and that is uniform on a triangle. An outcome is the part of the triangle where
    e_x / p_x is smallest; its share of what earlier outcomes left is its probability. So the joint
    law of all that is asked of one noise is exact.

    Args:
        script: Chooses which of several outcomes is taken in this execution.
    """

    def __init__(self, script: OutcomeChooser) -> None:
        self._script = script
        self._polygon = list(CORNERS)

    def argmax_token(self, logp_V: Tensor) -> int:
        return self.first_tokens(logp_V, 1)[0]

    def first_tokens(self, logp_V: Tensor, k: int) -> tuple[int, ...]:
        """Find the tokens that come first under this noise.

        Args:
            logp_V: Log-probabilities, shape ``[3]``.
            k: How many tokens; fewer where fewer have weight.

        Returns:
            Token ids, the first one first.
        """
        p = float64_probabilities(logp_V).tolist()
        left = [i for i in range(3) if p[i] > 0.0]
        out: list[int] = []
        while left and len(out) < k:
            # The next token is the one with the smallest e / p among those that are left.
            parts = [self._where_first(x, left, p) for x in left]
            shares = torch.tensor(
                [double_polygon_area(part) for part in parts], dtype=torch.float64
            )
            shares /= shares.sum()
            # Slivers that rounding leaves would be enumerated like outcomes.
            shares[shares < NOTHING] = 0.0
            i = self._script.draw_outcome((shares / shares.sum()).tolist())
            # What was found out of the noise restricts all that is asked of it later.
            self._polygon = parts[i]
            out.append(left.pop(i))
        return tuple(out)

    def _where_first(self, x: int, left: list[int], p: list[float]) -> list[Point]:
        part = self._polygon
        for i in left:
            if i != x:  # e_x / p_x <= e_i / p_i
                side = [0.0, 0.0, 0.0]
                side[i], side[x] = p[x], -p[i]
                part = clip_polygon(part, (side[0], side[1], side[2]))
        return part
