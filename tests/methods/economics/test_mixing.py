"""What tokens are worth beside others, and in one tree of two sources."""

import pytest

from polydec.core.types import Draft
from polydec.methods.economics.mixing import alone, mixed, together, weighed


def test_rivals_make_a_token_less_likely_and_a_second_voice_more():
    assert alone(0.6, 0.3) < alone(0.6, 0.0)
    assert together(0.6, 0.6, 0.0) > max(together(0.6, 0.0, 0.0), together(0.0, 0.6, 0.0))
    assert together(0.6, 0.6, 0.5) < together(0.6, 0.6, 0.0)
    for p in (0.0, 1.0):
        assert 0.0 < alone(p, p) < 1.0 and 0.0 < together(p, p, p) < 1.0


def test_two_trees_become_one():
    first = Draft.certain((9, 1, 2, 3), (-1, 0, 1, 0), (1.0, 0.6, 0.9, 0.2))
    second = Draft.certain((9, 1, 5), (-1, 0, 1), (1.0, 0.7, 0.4))
    both = mixed(first, second)
    assert both.token == (9, 1, 2, 3, 5) and both.parent == (-1, 0, 1, 0, 1)
    assert both.chance == pytest.approx(
        (
            1.0,
            together(0.6, 0.7, 0.2),
            together(0.9, 0.0, 0.4),
            together(0.2, 0.0, 0.7),
            together(0.0, 0.4, 0.9),
        )
    )
    nobody = mixed(Draft.chain(9), second)
    assert nobody.chance == pytest.approx((1.0, alone(0.7, 0.0), alone(0.4, 0.0)))
    assert weighed(first).chance == pytest.approx(
        (1.0, alone(0.6, 0.2), alone(0.9, 0.0), alone(0.2, 0.6))
    )
