"""Probabilities of what was counted, and what a test would have seen: chi-square and normal tails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erfc, exp, expm1, fsum, log, log1p, sqrt
from statistics import NormalDist

import torch

NORMAL = NormalDist()
STAKES = tuple(sign * stake for stake in (0.25, 0.5, 1.0, 2.0, 4.0) for sign in (-1.0, 1.0))
"""Of bets, as powers of e: how much more, or less, often an event is thought to happen."""


def two_sided(z: float) -> float:
    """The probability that a standard normal lies at least as far from 0."""
    return erfc(abs(z) / sqrt(2.0))


def as_often(steps: Sequence[tuple[bool, float]]) -> float:
    """Bound the probability that events happen as much more or less often than their chances say.

    Whoever bets on them at fair odds has 1 / p times the money at the end with probability p at
    most, whatever the chances are and however few the events (Ville 1939); here the mean of several
    stakes. No normal tail is assumed, which one rare event would lie far out in.

    Args:
        steps: For each event whether it happened, and its chance, which was known before.

    Returns:
        The bound, 0 to 1.
    """
    # The log of the money after bets of odds e^s on each event: s - log(1 + q (e^s - 1)) where it
    # happens.
    gains = [sum(s * did - log1p(q * expm1(s)) for did, q in steps) for s in STAKES]
    # The mean of the stakes' money is a fair bet as well; its log is taken without overflow.
    most = max(gains)
    mean = most + log(fsum(exp(gain - most) for gain in gains) / len(gains))
    return min(1.0, exp(-mean))


def chi_square_tail(x: float, degrees: float) -> float:
    """The probability that a chi-square variable is at least x.

    Args:
        x: The value; below 0 counts as 0.
        degrees: Degrees of freedom, above 0.

    Returns:
        The probability.
    """
    half = torch.tensor([degrees / 2.0, max(0.0, x) / 2.0], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def chi_square_critical_value(alpha: float, degrees: float) -> float:
    """The value that a chi-square variable exceeds with a given probability.

    Args:
        alpha: The probability, 0 to 1.
        degrees: Degrees of freedom, above 0.

    Returns:
        The value.
    """
    return _root(lambda x: alpha - chi_square_tail(x, degrees), 0.0, 10.0 * degrees + 500.0)


def chi_square_noncentrality(alpha: float, power: float, degrees: float) -> float:
    """The non-centrality at which a chi-square test has a given power, after Patnaik's
    approximation.

    Args:
        alpha: The test's level, 0 to 1.
        power: Probability that the fault is caught, 0 to 1.
        degrees: Degrees of freedom, above 0.

    Returns:
        The non-centrality.
    """
    bound = chi_square_critical_value(alpha, degrees)

    def missing_mass(more: float) -> float:
        # Patnaik: a non-central variable is near a scaled central one of other degrees.
        scale = (degrees + 2.0 * more) / (degrees + more)
        freedom = (degrees + more) ** 2 / (degrees + 2.0 * more)
        return chi_square_tail(bound / scale, freedom) - power

    return _root(missing_mass, 0.0, 10.0 * bound + 100.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises through 0 does so."""
    # Bisection to the last bit of a float.
    for _ in range(100):
        mid = (low + high) / 2.0
        if rising(mid) < 0.0:
            low = mid
        else:
            high = mid
    return (low + high) / 2.0
