"""What pages of ours have in common: one file, light and dark, no scripts, nothing from elsewhere;
and figures drawn as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log10

from polydec.base.edge import escape_control_characters

STYLE = """
:root{--ink:#1d2330;--soft:#667085;--line:#d5dae3;--faint:#eef1f6;--paper:#fff;--good:#1a7f37;--goodbg:#d8f3df;--bad:#b3261e;--a:#3b6fd4;
--b:#c2700a;--c:#7a4fc4;--d:#1a8f4b;--e:#c7362f;--f:#0d8a94;--g:#b8408a;--h:#7b7a12}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#98a2b3;--line:#394150;--faint:#1e232c;--paper:#14171d;--good:#5fd38a;
--goodbg:#1d3b28;--bad:#ff8a80;--a:#7ea6f4;--b:#f0a95a;--c:#b79bf0;--d:#5fd38a;--e:#ff8a80;--f:#58cdd6;--g:#ef8cc6;--h:#cfcd5a}}
body{font:15px/1.6 system-ui,sans-serif;margin:0 auto;padding:1.2em;max-width:75em;color:var(--ink);background:var(--paper)}
h1{font-size:1.3em;overflow-wrap:anywhere}h2{font-size:1.1em;margin-top:2em;overflow-wrap:anywhere}h3{font-size:1em;color:var(--soft);
font-weight:600;margin-bottom:.3em}
p.note{color:var(--soft);margin:.2em 0;overflow-wrap:anywhere}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px;padding:.6em;margin:.5em 0}
"""

INKS = tuple(f"var(--{x})" for x in "abcdefgh")
"""Colours of things that are told apart; they begin anew behind the last."""


def escape_html(text: object, longest: int = 400) -> str:
    """Escape a text that may come from anywhere, without control characters.

    Args:
        text: The text.
        longest: Characters that stay. Default 400.

    Returns:
        HTML.
    """
    # Cut first: the text may be megabytes long.
    return html.escape(escape_control_characters(str(text)[:longest]))


def html_document(title: str, style: str, body: str) -> str:
    """Put one HTML page together.

    Args:
        title: Title and first heading, as text.
        style: CSS besides `STYLE`.
        body: HTML below the heading.

    Returns:
        The page.
    """
    name = escape_html(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{name}</title><style>{STYLE}{style}</style></head><body><h1>{name}</h1>{body}</body></html>\n"
    )


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
        return '<p class="note">Nothing was measured here.</p>'
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

    def at(x: float, y: float) -> tuple[float, float]:
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

    # Grid and labels first, so that the lines lie above them.
    out = list[str]()
    for y in axis_ticks(y0, y1):
        _, h = at(x0, y)
        if percent:
            label = f"{100 * y:.0f} %"
        else:
            label = f"{y:g}"
        out.append(f'<path d="M{LEFT} {h:.1f}H{WIDE - RIGHT}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{h + 4:.1f}" text-anchor="end">{label}</text>')
    for x in (x for x in axis_ticks(x0, x1) if not whole or x == int(x)):
        w, _ = at(x, y0)
        out.append(f'<text x="{w:.1f}" y="{HIGH - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    for line in lines:
        places = [at(x, y) for x, y in line.points]
        if joined and len(places) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            out.append(f'<path class="line" style="stroke:{line.ink}" d="M{path}"/>')
        # Intervals as upright strokes, cut at the lower end of the axis.
        for (x, _), (a, b) in zip(line.points, line.spread, strict=False):
            w, down = at(x, max(a, y0))
            _, above = at(x, b)
            out.append(
                f'<path class="line" style="stroke:{line.ink};opacity:.5" d="M{w:.1f} {down:.1f}V{above:.1f}"/>'
            )
        for (x, y), (w, h) in zip(line.points, places, strict=True):
            if percent:
                # Shown when the pointer rests on the point.
                told = f"{100 * y:.1f} %"
            else:
                told = f"{y:.4g}"
            out.append(
                f'<circle cx="{w:.1f}" cy="{h:.1f}" r="{3 if joined else 5}" style="fill:{line.ink}">'
                f"<title>{escape_html(line.name)}: {told} at {x:.4g}</title></circle>"
            )
    # The axis names come last, above all that was drawn.
    out.append(
        f'<text class="axis" x="{(LEFT + WIDE - RIGHT) / 2}" y="{HIGH - 4}" text-anchor="middle">{escape_html(across)}</text>'
    )
    legend = "".join(
        f"<li>{colour_dot_html(line.ink)}{escape_html(line.name)}</li>" for line in lines
    )
    return (
        f'<p class="up">{escape_html(up)}</p><svg class="figure" viewBox="0 0 {WIDE} {HIGH}" '
        f'role="img" aria-label="{escape_html(up)}">'
        f'{"".join(out)}</svg><ul class="legend">{legend}</ul>'
    )


def colour_dot_html(ink: str) -> str:
    """A dot of a colour, for legends."""
    return f'<i class="dot" style="background:{ink}"></i>'


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


FIGURES = """
svg.figure{width:100%;max-width:34em;height:auto;display:block}
svg.figure text{font:11px system-ui,sans-serif;fill:var(--soft)}svg.figure text.axis{fill:var(--ink)}
svg.figure path{fill:none;stroke:var(--line);stroke-width:1}svg.figure path.line{stroke-width:2;stroke-linejoin:round}
p.up{margin:.2em 0;font-size:.85em;color:var(--ink)}
ul.legend{list-style:none;margin:.3em 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.1em 1em;font-size:.85em}
ul.legend li{overflow-wrap:anywhere}
i.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.4em}
"""
