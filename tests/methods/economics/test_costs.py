from math import inf

import pytest

from polydec.lab.testing.toy import toy_law
from polydec.methods.economics.costs import PassCosts


def test_share_of_a_pass():
    costs = PassCosts((4.0, 5.0, 7.0, 9.0))
    assert costs.request_share(1) == 4.0 and costs.request_share(3) == 7.0
    assert costs.request_share(2, peers=2) == 4.5  # four rows in all
    assert costs.request_share(6) == pytest.approx(
        9.0 + 2 * 5 / 3
    )  # a straight line through the table's first and last entry
    assert costs.request_share(8, peers=2) == pytest.approx((9.0 + 12 * 5 / 3) / 2)


def test_context_costs_more():
    costs = PassCosts((4.0, 5.0), more_ms=(1.0, 3.0))
    assert (
        costs.request_share(1, context=500) == 4.5 and costs.request_share(2, context=2000) == 11.0
    )
    assert costs.request_share(3, context=1000) == pytest.approx(6.0 + 5.0)


def test_sequences_cost_by_themselves():
    """Their rows are multiplied together, but each reads a context of its own, which caches may not hold for all of them."""
    costs = PassCosts((4.0, 5.0, 7.0, 9.0), more_ms=(1.0, 1.5), beside_ms=0.25, crowd=2.0)
    assert costs.pass_ms(1, 1, 1000) == 5.0 and costs.pass_ms(2, 1, 1000) == 6.5
    assert costs.pass_ms(2, 2, 1000) == 5.0 + 0.25 + 2 * 2.0
    assert costs.pass_ms(4, 2, 1000) == 9.0 + 0.25 + 2 * 3.0 == 2 * costs.request_share(2, 2, 1000)
    assert costs.pass_ms(4, 2) == 9.25


def test_a_table_that_falls_does_not_go_below_its_end():
    assert PassCosts((4.0, 3.0)).request_share(50) == 3.0


@pytest.mark.parametrize(
    "given, match",
    [
        ({"rows_ms": (1.0,)}, "rows_ms"),
        ({"rows_ms": (1.0, 0.0)}, "rows_ms"),
        ({"more_ms": (1.0, 1.0, 1.0)}, "more_ms"),
        ({"beside_ms": -1.0}, "beside_ms"),
        ({"crowd": 0.5}, "crowd"),
        ({"crowd": float("nan")}, "crowd"),
        ({"more_ms": (1.0, -1.0)}, "more_ms"),
        ({"draft_ms": -1.0}, "draft_ms"),
        ({"draft_ms": float("nan")}, "draft_ms"),
    ],
)
def test_bad_tables(given, match):
    with pytest.raises(ValueError, match=match):
        PassCosts(**given)


def test_where_a_position_costs_twice():
    """Rows at 1 ms each, and 0.5 ms more each for 1,000 tokens: behind 2,000 they cost 2."""
    rows, more = tuple(3.0 + m for m in range(1, 33)), tuple(1.0 + 0.5 * m for m in range(1, 33))
    assert PassCosts(rows, more_ms=more).doubling == pytest.approx(2000)
    assert PassCosts(rows).doubling == PassCosts(rows, more_ms=(1.0, 1.0)).doubling == inf


def test_peers_are_the_open_sessions():
    target = toy_law(0)
    one = target.open_session((0, 1))
    assert one.peers == 1
    two = target.open_session((0,))
    assert one.peers == two.peers == 2
    two.close()
    assert one.peers == 1


@pytest.mark.parametrize(
    "rows_ms, answers, least, most",
    [
        ((50.0, 60.0), 4, 60, 80),
        ((50.0, 60.0), 64, 384, 384),
        ((50.0, 50.0), 4, 3800, 4096),
        ((50.0, 100.0), 4, 24, 24),
        ((50.0, 55.0), 4096, 4096, 4096),
    ],
)
def test_a_budget_is_as_small_as_its_share_of_the_speed_allows(rows_ms, answers, least, most):
    """Where a pass costs a and each row b, 0.95 of the best speed needs about 19 a / b rows."""
    assert least <= PassCosts(rows_ms).pass_budget(answers) <= most


def test_a_quick_pass_is_never_made_shorter():
    """One row in a millisecond, each further one half of it: 79 rows take 40 ms, and few answers or many do not matter."""
    assert [PassCosts((1.0, 1.5)).pass_budget(n) for n in (1, 4, 13)] == [79, 79, 79]
    assert PassCosts((1.0, 1.5)).pass_budget(14) == 84
