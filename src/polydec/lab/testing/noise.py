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

    def draw(self, p: list[float]) -> int: ...


def double_polygon_area(polygon: list[Point]) -> float:
    """Twice the area, seen along the third axis."""
    return abs(
        sum(
            a[0] * b[1] - b[0] * a[1]
            for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True)
        )
    )


def clip_polygon(polygon: list[Point], side: Point) -> list[Point]:
    """The part of a convex polygon where side · point >= 0."""
    out: list[Point] = []
    height = [sum(s * x for s, x in zip(side, p, strict=True)) for p in polygon]
    for i, (p, h) in enumerate(zip(polygon, height, strict=True)):
        q = polygon[i - 1]
        g = height[i - 1]
        if (h > 0.0 > g) or (h < 0.0 < g):
            t = g / (g - h)
            x, y, z = (a + t * (b - a) for a, b in zip(q, p, strict=True))
            out.append((x, y, z))
        if h >= 0.0:
            out.append(p)
    return out


class SimplexNoise:
    """Stands in for rng.Noise over three tokens.

    argmax(log p + Gumbel) is argmin(e / p) of three exponential variables e, which depends on their direction only, and
    that is uniform on a triangle. An outcome is the part of the triangle where e_x / p_x is smallest; its share of what
    earlier outcomes left is its probability. So the joint law of all that is asked of one noise is exact.
    """

    def __init__(self, script: OutcomeChooser) -> None:
        self._script = script
        self._polygon = list(CORNERS)

    def argmax(self, logp_V: Tensor) -> int:
        return self.topk(logp_V, 1)[0]

    def topk(self, logp_V: Tensor, k: int) -> tuple[int, ...]:
        p = float64_probabilities(logp_V).tolist()
        left = [i for i in range(3) if p[i] > 0.0]
        out: list[int] = []
        while left and len(out) < k:
            parts = [self._where_first(x, left, p) for x in left]
            shares = torch.tensor(
                [double_polygon_area(part) for part in parts], dtype=torch.float64
            )
            shares /= shares.sum()
            shares[shares < NOTHING] = 0.0
            i = self._script.draw((shares / shares.sum()).tolist())
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
