"""Published orders: each is that of a method, has the figure and the interval of its page, and says what the interval says."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orders
import pytest

from polydec.methods.registry import registry, steer

REPORTS = Path(__file__).parent
ALL = orders.orders()


@pytest.mark.parametrize("order", ALL, ids=lambda order: f"{order.method}: {order.order}")
def test_an_order_has_the_figures_of_its_page(order):
    assert order.stands_in((REPORTS / order.page).read_text("utf-8"))
    assert order.method in {*registry.recipe_modules(), *steer.steering_modules()}
    said = {orders.YES, orders.NO, orders.OPEN, orders.UNSAID}
    assert order.order and order.paper and order.holds in said


ORDER = orders.Order("eagle", "over Medusa", "ahead", "above 1", "1.2", "1.1", "1.3", "x.md", "")


@pytest.mark.parametrize(
    "page, there",
    [
        ("EAGLE has 1.2 (1.1 to 1.3)", True),
        ("EAGLE has 1.2\n[1.1,\n1.3]", True),
        ("1.2 times [1.1, 1.3]", True),
        ("11.2 (1.1 to 1.3)", False),
        ("1.2 (1.1 to 1.31)", False),
        ("1.2 and (1.1 to 1.3)", False),
    ],
)
def test_a_figure_is_found_with_its_interval(page, there):
    assert ORDER.stands_in(page) is there


@pytest.mark.parametrize(
    "expected, low, high, holds",
    [
        ("above 1", "1.01", "1.2", orders.YES),
        ("above 1", "1.00", "1.2", orders.OPEN),
        ("above 1", "0.8", "0.99", orders.NO),
        ("above 0", "+0.1", "+0.2", orders.YES),
        ("below 0", "-0.2", "-0.1", orders.YES),
        ("below 0", "+0.1", "+0.2", orders.NO),
        ("as much as 0", "-0.2", "+0.1", orders.YES),
        ("as much as 0", "-0.2", "-0.1", orders.NO),
        ("as much as 1", "1.1", "1.2", orders.YES),
        ("at most 0", "-0.2", "4.3", orders.YES),
        ("at most 0", "0.7", "5.7", orders.NO),
    ],
)
def test_the_interval_decides(expected, low, high, holds):
    assert replace(ORDER, expected=expected, low=low, high=high).holds == holds


def test_no_order_holds_of_a_run_that_lacks_something_and_one_that_fails_still_stands():
    lacking = replace(ORDER, lacks="trained once")
    assert ORDER.holds == orders.YES and lacking.holds == orders.UNSAID
    assert replace(lacking, low="0.8", high="0.9").holds == orders.NO
    assert replace(lacking, low="0.8").holds == orders.OPEN
    assert lacking.cells[-1] == "trained once"


def test_the_table_is_up_to_date_and_a_method_page_has_its_rows():
    done = subprocess.run([sys.executable, REPORTS / "orders.py", "--check"], check=False)
    assert done.returncode == 0, "run `python lab/reports/orders.py`"
    assert (
        "| over Token Recycling, tokens a pass | ahead | 0.86 | 0.84 to 0.89 | **no** | "
        "the tree's shape is set by hand, not made from data |" in orders.section("stand")
    )
    assert orders.section("plain") == []
