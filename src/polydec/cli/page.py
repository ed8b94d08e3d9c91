"""Charts of pages, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log10

from polydec.base.page_templates import render_page_template

INKS = tuple(f"var(--{x})" for x in "abcdefgh")
"""Colours of things that are told apart; they begin anew behind the last."""


@dataclass(frozen=True)
class ChartSeries:
    """Points of one thing, from left to right.

    Attributes:
        name: Its name in the legend.
        points: Pairs (x, y).
        ink: Its colour, as CSS.
        spread: Of each point the lower and upper end of its interval; empty: none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    ink: str
    spread: Sequence[tuple[float, float]] = ()


WIDE = 380
HIGH = 230
LEFT = 44
RIGHT = 12
TOP = 10
BOTTOM = 36
"""Pixels of a figure, and around what it shows."""


def svg_chart(
    lines: Sequence[ChartSeries],
    across: str,
    up: str,
    *,
    joined: bool = True,
    low: tuple[float | None, float | None] = (None, 0.0),
    most: float | None = None,
    percent: bool = False,
    whole: bool = False,
) -> str:
    """Draw lines, or points alone, over two axes, with a legend below.

    Args:
        lines: What is drawn.
        across: Label of the horizontal axis.
        up: Label of the upright axis.
        joined: Whether points are joined by lines. Default true.
        low: Where the horizontal and the upright axis begin; None: at the smallest value.
        most: Where the upright axis ends; None: at the largest value or end of an interval.
        percent: Whether y are shares, shown in percent. Default false.
        whole: Whether only whole numbers stand at the horizontal axis. Default false.

    Returns:
        HTML with the figure, or a note where there is no point.
    """
    points = [(x, y) for line in lines for x, y in line.points]
    if not points:
        return render_page_template("cli/chart.html.jinja", lines=())
    # Intervals may reach above the highest point.
    tops = [y for _, y in points] + [b for line in lines for _, b in line.spread]
    if low[0] is None:
        x0 = min(x for x, _ in points)
    else:
        x0 = low[0]
    # Single points need room for their circle at the right end.
    x1 = max(x for x, _ in points) * (1.0 if joined else 1.08)
    if low[1] is None:
        y0 = min(y for _, y in points)
    else:
        y0 = low[1]
    y1 = max(tops) if most is None else most
    # An axis of no length would divide by zero.
    x1 = x1 if x1 > x0 else x0 + 1
    y1 = y1 if y1 > y0 else y0 + 1

    def point_pixel(x: float, y: float) -> tuple[float, float]:
        """The pixel of a point; y grows downwards in SVG.

        Args:
            x: Value on the horizontal axis.
            y: Value on the upright axis.

        Returns:
            Pixels from the left and from the top.
        """
        return (
            LEFT + (WIDE - LEFT - RIGHT) * (x - x0) / (x1 - x0),
            HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * (y - y0) / (y1 - y0),
        )

    return render_page_template(
        "cli/chart.html.jinja",
        lines=lines,
        across=across,
        up=up,
        joined=joined,
        percent=percent,
        at=point_pixel,
        x0=x0,
        y0=y0,
        rows=axis_ticks(y0, y1),
        columns=[x for x in axis_ticks(x0, x1) if not whole or x == int(x)],
        wide=WIDE,
        high=HIGH,
        left=LEFT,
        right=WIDE - RIGHT,
        bottom=HIGH - BOTTOM,
    )


def axis_ticks(low: float, high: float) -> list[float]:
    """Round numbers along an axis, four to eight of them.

    Args:
        low: Where the axis begins.
        high: Where it ends, above `low`.

    Returns:
        The numbers, ascending.
    """
    size = 10.0 ** ceil(log10(high - low))
    # The largest round step that still gives nearly four spaces.
    step = next(s for p in (1, 2, 2.5, 5, 10, 20, 25, 50) if (high - low) / (s := size / p) >= 3.9)
    if low >= 0:
        first = int(low / step)
    else:
        # `int` rounds towards 0, so a negative start needs one step more.
        first = int(low / step) - 1
    marks = [round(step * i, 9) for i in range(first, first + 20)]
    return [x for x in marks if low - 1e-9 <= x <= high + 1e-9]
