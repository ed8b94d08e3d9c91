"""Minimising a dear function of sets: a Gaussian process says which set is worth trying next (expected improvement)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import erf

import numpy as np

Mask = frozenset[int]
_KERNELS = tuple(product((0.3, 1.0, 3.0), (0.3, 1.0), (4.0, 12.0), (0.01, 0.1, 0.3)))
"""Sizes of the additive and of the local part, how many members apart the local part fades, noise."""


def minimise(
    f: Callable[[Mask], float],
    items: Sequence[int],
    *,
    least: int,
    most: int,
    tries: int,
    start: int = 20,
    seed: int = 0,
    given: Mapping[Mask, float] | None = None,
) -> dict[Mask, float]:
    """Try sets of `least` to `most` of the items: `start` random ones, then `tries` in all where an improvement on the best
    is expected to be largest; given: values that are known beforehand, of any sets. Returns what f gave for each, in the
    order tried; fewer where no others turn up.

    Two sets' values go together by their common members (each adds its part) and fall apart with the number of members
    that they do not share; the kernel's sizes are those of the largest likelihood. Candidates are sets one to three changes
    from the five best, and random ones. Source: Jones, Schonlau and Welch, "Efficient global optimization of expensive
    black-box functions" (1998).
    """
    rng, known = random.Random(seed), dict[Mask, float]()

    def drawn() -> Mask:  # small ones more often: they say more of each member
        return frozenset(rng.sample(items, min(rng.randint(least, most) for _ in range(4))))

    def moved(m: Mask) -> Mask:
        inside, outside = sorted(m), [x for x in items if x not in m]
        out = {rng.choice(inside)} if inside and rng.random() < 0.67 else set[int]()
        new = {rng.choice(outside)} if outside and (not out or rng.random() < 0.5) else set[int]()
        return m - out | new

    while len(known) < tries:
        near = {drawn() for _ in range(300)}
        if len(known) >= start:
            best = sorted(known, key=lambda m: known[m])[:5]
            for _ in range(400):
                m = rng.choice(best)
                for _ in range(rng.choice((1, 1, 2, 3))):
                    m = moved(m)
                near.add(m)
        fresh = {m for m in near - known.keys() if least <= len(m) <= most}
        if not fresh:
            break
        some = sorted(fresh, key=sorted)
        if len(known) < start:
            m = rng.choice(some)
        else:
            m = some[
                int(
                    expected_gain(
                        {**(given or {}), **known}, some, items, min(known.values())
                    ).argmax()
                )
            ]
        known[m] = f(m)
    return known


def expected_gain(
    known: Mapping[Mask, float], some: Sequence[Mask], items: Sequence[int], least: float
) -> np.ndarray:
    """By how much each of some sets is expected to fall below `least`, in standard deviations of the known values."""
    x, new = _rows(list(known), items), _rows(some, items)
    y = np.array(list(known.values()))
    mean, spread = y.mean(), max(float(y.std()), 1e-9)
    y = (y - mean) / spread
    fits = []
    for a, b, far, noise in _KERNELS:
        L = np.linalg.cholesky(_kernel(x, x, a, b, far) + noise * np.eye(len(y)))
        z = np.linalg.solve(L, y)
        fits.append((-z @ z / 2 - np.log(np.diag(L)).sum(), (a, b, far), L, z))
    _, sizes, L, z = max(fits, key=lambda fit: fit[0])
    v = np.linalg.solve(L, _kernel(x, new, *sizes))
    off = np.sqrt(np.maximum(_own(new, *sizes) - (v * v).sum(0), 1e-9))
    u = ((least - mean) / spread - v.T @ z) / off
    below = (1 + np.array([erf(t / 2**0.5) for t in u])) / 2
    return np.maximum(off * (u * below + np.exp(-u * u / 2) / (2 * np.pi) ** 0.5), 0.0)


def _rows(masks: Sequence[Mask], items: Sequence[int]) -> np.ndarray:
    return np.array([[float(i in m) for i in items] for m in masks])


def _kernel(x: np.ndarray, w: np.ndarray, additive: float, local: float, far: float) -> np.ndarray:
    apart = x.sum(1)[:, None] + w.sum(1) - 2 * x @ w.T
    return additive * (x - 0.25) @ (w - 0.25).T * 8 / x.shape[1] + local * np.exp(-apart / far)


def _own(x: np.ndarray, additive: float, local: float, far: float) -> np.ndarray:
    return additive * ((x - 0.25) ** 2).sum(1) * 8 / x.shape[1] + local
