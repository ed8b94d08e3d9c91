"""Laws of acceptance: known ones come back from their points, errors say how far off they are, drafts are as wide as pays."""

import random
from itertools import product
from math import log2

import pytest
from studies.scaling import Point, across, along, beyond, fit, full, slope

from polydec.drafting.widths import best_width

GRID = list(product((1, 2, 4, 8, 16), (1, 2, 4)))


def points(factors, noise=0.0, seed=0):
    rng = random.Random(seed)
    terms = along if len(factors) == 3 else across
    made = [Point(d, n, 0.0) for d, n in GRID]
    return [
        Point(
            p.tokens,
            p.capacity,
            sum(f * t for f, t in zip(factors, terms(p), strict=True)) + rng.gauss(0, noise),
        )
        for p in made
    ]


@pytest.mark.parametrize("factors", [(0.4, 0.2, 0.1), (0.4, 0.2, 0.1, 0.05)])
def test_a_known_law_comes_back(factors):
    law = fit(points(factors))
    assert law.factors[: len(factors)] == pytest.approx(factors) and law.explained == pytest.approx(
        1.0
    )
    assert law.left_out < 1e-9 and law.at(Point(32, 8, 0)) == pytest.approx(
        factors[0] + 5 * factors[1] + 3 * factors[2] + (15 * factors[3] if len(factors) > 3 else 0)
    )


def test_errors_hold_what_they_say():
    """With noise, the true factor lies within two standard errors in some nineteen of twenty fits; and a product that is not
    there is seldom kept."""
    inside, simple = 0, 0
    for seed in range(200):
        law = fit(points((0.4, 0.2, 0.1), 0.05, seed))
        if law.terms is along:
            simple += 1
            inside += (
                abs(law.factors[1] - 0.2) < 2.18 * law.errors[1]
            )  # Student's t, twelve degrees of freedom
    assert simple > 130 and 0.9 < inside / simple < 0.99


def test_a_point_left_out_is_one_that_was_never_there():
    some = points((0.4, 0.2, 0.1, 0.05), 0.02, 3)
    law, off = fit(some), []
    for i, p in enumerate(some):
        other = fit([*some[:i], *some[i + 1 :]])
        if other.terms is law.terms is across:
            off.append((other.at(p) - p.accepted) ** 2)
    assert len(off) == len(some) and law.left_out == pytest.approx((sum(off) / len(off)) ** 0.5)


def test_what_ends_is_not_a_line():
    """Where acceptance stops growing, what the law says beyond its points is off by more than the noise."""
    bent = [Point(d, n, min(1.0, 0.3 * log2(d) + 0.05 * n)) for d, n in GRID]
    assert beyond(points((0.4, 0.2, 0.1), 0.01, 1)) < 0.05 < 0.1 < beyond(bent)
    assert full(3.2, 4) and not full(2.9, 4)


def test_a_draft_is_as_wide_as_pays():
    """The best of all widths, tried one by one; and narrower where a batch makes rows dear."""
    written = {m: 1 + 0.8 * log2(m + 1) for m in (0, 1, 2, 4, 8, 16, 32)}
    best = [
        best_width(written, lambda m, b=b: max(20.0, b * (m + 1))) for b in (1, 2, 4, 8, 16, 32)
    ]
    for b, m in zip((1, 2, 4, 8, 16, 32), best, strict=True):
        assert all(
            written[m] / max(20.0, b * (m + 1)) >= written[o] / max(20.0, b * (o + 1))
            for o in written
        )
    assert best == sorted(best, reverse=True) and best[0] >= 16 and best[-1] <= 1
    down, off = slope([(1, 8), (2, 6), (4, 4), (8, 2)])
    assert down == pytest.approx(-2.0) and off == pytest.approx(0.0, abs=1e-9)


def test_what_cannot_be_fitted_is_said():
    for some, said in (
        (points((1, 1, 1))[:4], "points has 4: a law needs 5"),
        ([Point(d, 1, d) for d in range(1, 8)], "capacity is the same"),
    ):
        with pytest.raises(ValueError, match=said):
            fit(some)
    with pytest.raises(ValueError, match="tokens is 0: it must be above 0"):
        Point(0, 1, 1)
