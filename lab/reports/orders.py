"""Published orders and what came of them here: which method is ahead of which, with the interval that says whether that holds.

`orders.csv` has a row an order. expected: what the paper has, as "above 1" (a ratio) or "as much as 0" (a difference);
ours, low, high: as the page that is named there shows them, the interval being that of the ratio or of the difference. lacks:
what the run lacks of the published method, "" where it has all of it (sizes that a paper chose for a GPU are not counted). Of a
run that lacks something no order is said to hold; where it fails it stands as failed, with what the run lacks beside it.

    python lab/reports/orders.py             # writes the table of lab/reports/claims.md
    python lab/reports/orders.py --check     # only says whether it is up to date
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from made import rewrite

REPORTS = Path(__file__).parent
BEGIN, END = "<!-- orders: made by lab/reports/orders.py from orders.csv -->", "<!-- end -->"

YES, NO, OPEN = "yes", "**no**", "cannot be told"
UNSAID = "not said"
"""The interval is on the paper's side, and the run is not the paper's."""


def above(low: float, high: float, base: float) -> str:
    return YES if low > base else NO if high < base else OPEN


def below(low: float, high: float, base: float) -> str:
    return above(-high, -low, -base)


def as_much(low: float, high: float, base: float) -> str:
    """Nothing is lost that can be told from chance; more is no fault."""
    return NO if high < base else YES


def at_most(low: float, high: float, base: float) -> str:
    """Nothing is lost that can be told from chance, of a figure that counts what is lost."""
    return NO if low > base else YES


EXPECTED: dict[str, Callable[[float, float, float], str]] = {
    "above": above,
    "below": below,
    "as much as": as_much,
    "at most": at_most,
}


@dataclass(frozen=True)
class Order:
    """A row of the file."""

    method: str
    order: str
    paper: str
    expected: str
    ours: str
    low: str
    high: str
    page: str
    lacks: str

    @property
    def holds(self) -> str:
        """Whether the published order holds here, by the interval and by what was run."""
        word, _, base = self.expected.rpartition(" ")
        found = EXPECTED[word](float(self.low), float(self.high), float(base))
        return UNSAID if found == YES and self.lacks else found

    @property
    def cells(self) -> tuple[str, ...]:
        interval = f"{self.low} to {self.high}"
        return (self.order, self.paper, self.ours, interval, self.holds, self.lacks)

    def stands_in(self, page: str) -> bool:
        """Whether the page shows this figure with this interval."""
        figure, low, high = map(re.escape, (self.ours, self.low, self.high))
        return bool(
            re.search(
                rf"(?<![\d.]){figure}\s(?:(?:times|x)\s)?[\[(]{low}(?:,| to)\s{high}[\])]", page
            )
        )


@cache
def orders() -> tuple[Order, ...]:
    with (REPORTS / "orders.csv").open(encoding="utf-8") as file:
        return tuple(Order(**row) for row in csv.DictReader(file))


HEAD = (
    "order",
    "the paper",
    "here",
    "95 % interval",
    "does it hold?",
    "what the run lacks of the published method",
)


def drawn(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|"] + [
        f"| {' | '.join(row)} |" for row in rows
    ]


def section(name: str) -> list[str]:
    """The lines of a method's page; none where no order of it is known."""
    mine = [order for order in orders() if order.method == name]
    if not mine:
        return []
    pages = ", ".join(dict.fromkeys(f"`lab/reports/{order.page}`" for order in mine))
    lines = drawn(HEAD, [order.cells for order in mine])
    return [f"Published orders ({pages}: how each was measured):", "", *lines, ""]


def counted() -> str:
    each = [order.holds for order in orders()]
    methods = len({order.method for order in orders()})
    return (
        f"Of {len(each)} published orders of {methods} methods **{each.count(YES)} hold** in runs of the published method, "
        f"{each.count(NO)} are the other way round, and of {each.count(OPEN)} the interval does not tell. "
        f"Of {each.count(UNSAID)} the interval is on the paper's side, but the run lacks something of the published method, "
        "so nothing is said."
    )


def listing() -> str:
    rows = [(f"`{order.method}`", *order.cells, f"[page]({order.page})") for order in orders()]
    return "\n".join([counted(), "", *drawn(("method", *HEAD, "from"), rows)])


def main() -> None:
    rewrite(REPORTS / "claims.md", BEGIN, END, listing())


if __name__ == "__main__":
    main()
