"""How acceptance grows with what a drafter has read and with its size, and how wide a draft pays at which batch (Scylla)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from polydec.base.errors import RequestError

LEAST = 5
"""Points that a law is fitted to, at least."""
FULL = 0.8
"""Share of the drafted tokens and the one behind them from which on a count of accepted ones is near its end."""


@dataclass(frozen=True)
class Point:
    """One drafter: tokens it was trained on and its capacity (any unit), both above 0; accepted: drafted tokens that a pass of
    the target accepted, a mean."""

    tokens: float
    capacity: float
    accepted: float

    def __post_init__(self) -> None:
        for name in ("tokens", "capacity"):
            if not getattr(self, name) > 0:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be above 0")


Terms = Callable[[Point], tuple[float, ...]]


def along(p: Point) -> tuple[float, ...]:
    """Of a law that adds what each doubling brings."""
    return 1.0, log2(p.tokens), log2(p.capacity)


def across(p: Point) -> tuple[float, ...]:
    """Of a law in which a doubling of one changes what a doubling of the other brings."""
    return *along(p), log2(p.tokens) * log2(p.capacity)


@dataclass(frozen=True)
class Law:
    """accepted = the sum of factors times terms: a constant, what a doubling of the tokens brings, what one of the capacity
    brings, and perhaps their product. errors: standard errors of the factors; explained: R²; left_out: root mean square error
    at points that it was not fitted to, each left out in turn."""

    terms: Terms
    factors: tuple[float, ...]
    errors: tuple[float, ...]
    explained: float
    left_out: float

    def at(self, point: Point) -> float:
        """What it says of a drafter of these tokens and this capacity."""
        return float(np.dot(self.terms(point), self.factors))


def fit(points: Sequence[Point]) -> Law:
    """The law of least squares; the product is kept where it brings points that were left out nearer. Raises RequestError for
    fewer than LEAST points, or where one of the two never changes.

    Source: Scaling Laws for Speculative Decoding (2025); the joint form is ours.
    """
    if len(points) < LEAST:
        raise RequestError(f"points has {len(points)}: a law needs {LEAST}")
    for name in ("tokens", "capacity"):
        if len({getattr(p, name) for p in points}) < 2:
            raise RequestError(f"{name} is the same at all points: it must change")
    plain, product = (
        _fitted(points, along),
        _fitted(points, across) if len(points) > LEAST else None,
    )
    return product if product is not None and product.left_out < plain.left_out else plain


def _fitted(points: Sequence[Point], terms: Terms) -> Law:
    x, y = np.array([terms(p) for p in points]), np.array([p.accepted for p in points])
    factors, inverse, off, errors = _least(x, y)
    share = np.clip(
        1 - np.einsum("ij,jk,ik->i", x, inverse, x), 1e-9, None
    )  # of its error that a point has left out
    spread = float(((y - y.mean()) ** 2).sum())
    return Law(
        terms,
        tuple(factors.tolist()),
        tuple(errors.tolist()),
        1.0 - float(off @ off) / spread if spread else 0.0,
        float(np.sqrt(np.mean((off / share) ** 2))),
    )


def _least(x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Factors of least squares, the inverse of the terms' products, what is left at each point, and standard errors."""
    inverse = np.linalg.pinv(x.T @ x)
    factors = inverse @ x.T @ y
    off = y - x @ factors
    return (
        factors,
        inverse,
        off,
        np.sqrt(np.diag(inverse) * (off @ off) / max(1, len(y) - x.shape[1])),
    )


def beyond(points: Sequence[Point]) -> float:
    """Root mean square error at the points of most tokens, of a law fitted to all others: whether it may be extended."""
    most = max(p.tokens for p in points)
    law, far = fit([p for p in points if p.tokens < most]), [p for p in points if p.tokens == most]
    return float(np.sqrt(np.mean([(law.at(p) - p.accepted) ** 2 for p in far])))


def full(accepted: float, depth: int) -> bool:
    """Whether so many accepted tokens, and the one behind them, are near the most that drafts of this depth can bring: there no
    law can go on growing."""
    return accepted + 1 > FULL * (depth + 1)


def slope(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of pairs (x, y), x above 0: what a doubling of x adds to y, and its standard error."""
    factors, _, _, errors = _least(
        np.array([(1.0, log2(x)) for x, _ in pairs]), np.array([y for _, y in pairs])
    )
    return float(factors[1]), float(errors[1])
