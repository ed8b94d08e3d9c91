"""A bench as a page that one can send: speed-ups by kind of work, where drafts are right, where
time goes, what passes cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from polydec.cli.page import (
    FIGURES,
    INKS,
    ChartSeries,
    colour_dot_html,
    escape_html,
    html_document,
    svg_chart,
)
from polydec.request.profile import PassProfile

Row = Mapping[str, Any]

_STYLE = (
    FIGURES
    + """
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--faint);border-radius:8px;padding:.7em;margin:.5em 0;
font-size:.9em}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22em,100%),1fr));gap:.8em;align-items:start}
.card{border:1px solid var(--line);border-radius:8px;padding:.6em .8em .8em;min-width:0}
.card h3{margin:.1em 0 .4em;color:var(--ink);overflow-wrap:anywhere}
.bar{margin:.35em 0}.bar .name{display:flex;justify-content:space-between;gap:.8em;font-size:.9em}
.bar .name span{overflow-wrap:anywhere}.bar .name b{white-space:nowrap;font-variant-numeric:tabular-nums}
.bar .name small{color:var(--soft);font-weight:400}
.track{position:relative;display:block;height:.8em;background:var(--faint);border-radius:3px}
.track i{position:absolute;top:0;bottom:0;left:0;border-radius:3px}
.track u{position:absolute;top:35%;height:30%;background:var(--ink);opacity:.55;border-radius:1px}
.track s{position:absolute;top:-.15em;bottom:-.15em;width:1.5px;background:var(--soft)}
.parts i{border-radius:0}
table{border-collapse:collapse;font-size:.9em;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft);text-align:right;padding:.2em .7em;white-space:nowrap;border-bottom:1px solid var(--line)}
td{text-align:right;padding:.2em .7em;white-space:nowrap}th.l,td.l{text-align:left}td small{color:var(--soft)}
td.l{white-space:normal;min-width:9em;overflow-wrap:anywhere}
tr+tr td{border-top:1px solid var(--faint)}
summary{cursor:pointer;font-weight:600;margin-top:2em}
.lead{font-size:1.05em}
.doubt{border-left:4px solid var(--b);padding:.2em .8em;margin:.8em 0}
"""
)


def render_bench_page(
    identity: Mapping[str, Any],
    rows: Sequence[Row],
    curves: Mapping[str, PassProfile],
    command: str,
    doubts: Sequence[str] = (),
) -> str:
    """Make the report of a bench: one HTML page that needs no network.

    Args:
        identity: What all runs have in common: models, machine, versions.
        rows: Rows of the table.
        curves: By model's name what its passes cost; empty: not measured.
        command: The command line that measured it.
        doubts: Why its figures are to be read with care.

    Returns:
        The page.
    """
    cells = list(dict.fromkeys(_cell(r) for r in rows))
    methods = list(dict.fromkeys(r["method"] for r in rows))
    # A method has one colour on the whole page.
    ink = {m: INKS[i % len(INKS)] for i, m in enumerate(methods)}
    models = ", ".join(dict.fromkeys(m["name"] for m in identity["models"]))
    body = [_head(identity, command)]
    body += [f'<p class="doubt"><b>Mind:</b> {escape_html(doubt)}.</p>' for doubt in doubts]
    # One part for each model, batch and temperature.
    for at in cells:
        mine = [r for r in rows if _cell(r) == at]
        body.append(_of_cell(mine, ink, _title(at)))
    for name, curve in curves.items():
        body.append(_passes(name, curve))
    body.append(_figures(rows))
    return html_document(f"Methods of decoding {models}, side by side", _STYLE, "".join(body))


def _cell(r: Row) -> tuple[str, int, float]:
    return r["model"], r["batch"], r["temperature"]


def _title(at: tuple[str, int, float]) -> str:
    model, batch, temperature = at
    if batch == 1:
        at_once = "one request at a time"
    else:
        at_once = f"{batch} requests at once"
    if temperature == 0:
        how = "greedy"
    else:
        how = f"temperature {temperature:g}"
    return f"{model}, {at_once}, {how}"


def _head(identity: Mapping[str, Any], command: str) -> str:
    """The machine, the models, the versions and the command."""
    machines = "; ".join(dict.fromkeys(m["machine"] for m in identity["models"]))
    models = "; ".join(
        f"{m['name']} ({m['kernel']}, {m['dtype']}, {m['template']}"
        + (f", draft {m['draft']})" if m["draft"] else ")")
        for m in identity["models"]
    )
    versions = identity["versions"]
    return (
        f'<p class="note">{escape_html(machines)}</p><p class="note">{escape_html(models, 2000)}</p>'
        f'<p class="note">polydec {escape_html(versions["polydec"])}, {escape_html(versions["system"])}, '
        f"{time.strftime('%Y-%m-%d')}</p>"
        f"<pre>{escape_html(command, 4000)}</pre>"
    )


def _of_cell(rows: Sequence[Row], ink: Mapping[str, str], title: str) -> str:
    """All that there is to see of one model, batch and temperature."""
    names = list(dict.fromkeys(r["workload"] for r in rows))
    # With a single workload there is no row "all".
    if len(names) > 1:
        overall = "all"
    else:
        overall = names[0]
    total = [r for r in rows if r["workload"] == overall]
    others = [n for n in names if n != overall]
    # All bars of a cell share one scale, with room for the longest interval.
    top = max([1.2, *((r["ratio_interval"] or [0, 0])[1] for r in rows), *map(_ratio, rows)])
    cards = [_speed("All prompts" if others else overall, total, ink, top)]
    cards += [_speed(n, [r for r in rows if r["workload"] == n], ink, top) for n in others]
    figures = [_time(total), _depth(total, ink), _quality(total, ink)]
    return (
        f'<h2>{escape_html(title)}</h2><p class="lead">{_verdict(total)}</p>'
        f"{_overview(total, ink)}"
        "<h3>Speed against the first method, decoding only</h3>"
        '<p class="note">The upright line is 1: as fast as that. The dark stroke is the 95 % interval.</p>'
        f'<div class="cards">{"".join(cards)}</div>'
        f'<h3>Why</h3><div class="cards">{"".join(f for f in figures if f)}</div>'
    )


def _ratio(r: Row) -> float:
    return r["ratio_to_plain"] or 0.0


def _verdict(rows: Sequence[Row]) -> str:
    """What a reader takes home."""
    base, *others = rows
    # Faster beyond chance: the whole 95 % interval lies above 1.
    sure = [r for r in others if r["ratio_interval"] and r["ratio_interval"][0] > 1]
    if sure:
        best = max(sure, key=_ratio)
        low, high = best["ratio_interval"]
        return (
            f"<b>{escape_html(best['method'])}</b> is the fastest: {_ratio(best):.2f} times {escape_html(base['method'])} "
            f"({low:.2f} to {high:.2f})."
        )
    if others:
        return f"No method was faster than {escape_html(base['method'])} beyond what chance does."
    return f"{escape_html(base['method'])}: {base['tokens_per_second']:.1f} tokens a second."


def _overview(rows: Sequence[Row], ink: Mapping[str, str]) -> str:
    # A row a method, each with the colour that it has in the figures.
    columns = _columns(rows)
    head = "".join(f"<th>{escape_html(name)}</th>" for name, _ in columns)
    lines = "".join(
        f'<tr><td class="l">{colour_dot_html(ink[r["method"]])}{escape_html(r["method"])}</td>'
        + "".join(f"<td>{shown(r)}</td>" for _, shown in columns)
        + "</tr>"
        for r in rows
    )
    return f'<div class="wide"><table><tr><th class="l">method</th>{head}</tr>{lines}</table></div>'


def _columns(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    """What the table shows; what nobody measured has no column."""
    # Most machines do not say their energy, and most prompts have no known answer.
    energy = any(r["joules_per_token"] is not None for r in rows)
    judged = any(r["judged"] for r in rows)
    return [
        ("tokens/s", lambda r: f"{r['tokens_per_second']:.1f}"),
        ("ratio", lambda r: f"{_ratio(r):.2f} <small>({_between(r['ratio_interval'])})</small>"),
        ("tokens/pass", lambda r: f"{r['tokens_per_pass'] or 0:.2f}"),
        ("accepted", lambda r: f"{r['mean_acceptance_length']:.2f}"),
        ("first token", lambda r: _ms(r["time_to_first_token"])),
        ("gap (99 %)", lambda r: f"{_ms(r['gap'])} <small>({_ms(r['gap_99'])})</small>"),
        ("caches", lambda r: f"{r['cache_bytes'] / 2**20:.1f} MB"),
        *([("joules a token", lambda r: f"{r['joules_per_token'] or 0:.2f}")] if energy else []),
        ("same text", lambda r: "yes" if r["identical"] else "no"),
        *([("right", _right)] if judged else []),
    ]


def _between(interval: Sequence[float] | None) -> str:
    if interval:
        return f"{interval[0]:.2f} to {interval[1]:.2f}"
    return "–"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{1000 * seconds:.0f} ms"


def _right(r: Row) -> str:
    if r["right"] is None:
        return "–"
    low, high = r["right_interval"]
    return f"{r['right']:.0%} <small>({low:.0%} to {high:.0%})</small>"


def _speed(name: str, rows: Sequence[Row], ink: Mapping[str, str], top: float) -> str:
    """A bar a method."""
    bars = list[str]()
    for r in rows:
        ratio = _ratio(r)
        interval = r["ratio_interval"]
        stroke = ""
        # Percent of the track's width; a stroke thinner than 0.4 would not be seen.
        if interval and interval[1] > interval[0]:
            low, high = (100 * x / top for x in interval)
            stroke = f'<u style="left:{low:.2f}%;width:{max(0.4, high - low):.2f}%"></u>'
        if stroke:
            spread = f" <small>{_between(interval)}</small>"
        else:
            spread = ""
        bars.append(
            f'<div class="bar"><span class="name"><span>{escape_html(r["method"])}</span><b>{ratio:.2f}{spread}</b></span>'
            f'<span class="track"><i style="width:{100 * ratio / top:.2f}%;background:{ink[r["method"]]}"></i>{stroke}'
            f'<s style="left:{100 / top:.2f}%"></s></span></div>'
        )
    return f'<div class="card"><h3>{escape_html(name)}</h3>{"".join(bars)}</div>'


PARTS = (("target_share", "var(--a)"), ("other_share", "var(--b)"), ("rest_share", "var(--line)"))


def _time(rows: Sequence[Row]) -> str:
    """Where the seconds went."""
    bars = list[str]()
    for r in rows:
        left = 0.0
        parts = list[str]()
        # Parts of one bar, side by side: each begins where the last one ends.
        for key, colour in PARTS:
            parts.append(
                f'<i style="left:{100 * left:.2f}%;width:{100 * r[key]:.2f}%;background:{colour}"></i>'
            )
            left += r[key]
        # Three shares that add up to the whole time.
        target, others, rest = (f"{r[key]:.0%}" for key, _ in PARTS)
        bars.append(
            f'<div class="bar"><span class="name"><span>{escape_html(r["method"])}</span>'
            f"<b><small>{target} · {others} · {rest}</small></b></span>"
            f'<span class="track parts">{"".join(parts)}</span></div>'
        )
    legend = "".join(
        f"<li>{colour_dot_html(colour)}{name}</li>"
        for (_, colour), name in zip(
            PARTS, ("passes of the model", "of drafts and others", "the rest"), strict=True
        )
    )
    return f'<div class="card"><h3>Where the time goes</h3>{"".join(bars)}<ul class="legend">{legend}</ul></div>'


def _depth(rows: Sequence[Row], ink: Mapping[str, str]) -> str:
    """How many of all drafts were right so deep."""
    lines = [
        ChartSeries(
            r["method"],
            # Depth from 1: the first drafted token after the pending one.
            [(d, a) for d, a in enumerate(r["accepted_at"][:DEEP], 1)],
            ink[r["method"]],
        )
        for r in rows
        if r["accepted_at"]
    ]
    # Methods without drafts have no depth.
    if not lines:
        return ""
    drawn = svg_chart(
        lines,
        "depth of the drafted token",
        "drafts that were right so deep",
        most=1.0,
        percent=True,
        whole=True,
    )
    return f'<div class="card"><h3>Acceptance by depth</h3>{drawn}</div>'


DEEP = 16
"""Levels of a draft that are drawn."""


def _quality(rows: Sequence[Row], ink: Mapping[str, str]) -> str:
    """Right answers against speed; nothing where nobody said what is right."""
    lines = [
        ChartSeries(
            r["method"],
            [(r["tokens_per_second"], r["right"])],
            ink[r["method"]],
            # The upright stroke of the point: the interval of its share of right answers.
            [tuple(r["right_interval"])],
        )
        for r in rows
        if r["right"] is not None
    ]
    # Speed alone is no news where no answer was judged.
    if not lines:
        return ""
    drawn = svg_chart(
        lines,
        "tokens a second",
        f"answers that are right, of {rows[0]['judged']}",
        joined=False,
        low=(0.0, 0.0),
        most=1.0,
        percent=True,
    )
    return f'<div class="card"><h3>Quality against cost</h3>{drawn}</div>'


def _passes(name: str, curve: PassProfile) -> str:
    """What a pass over m rows costs on this machine."""
    lines = [
        ChartSeries(f"behind {context} tokens", _points(table), ink)
        for context, table, ink in (
            (curve.context, curve.rows, INKS[0]),
            (curve.far_context, curve.far, INKS[1]),
        )
    ]
    first = curve.rows[1]
    # A quick profile may have no pass over eight rows.
    eight = curve.rows.get(8)
    if eight:
        cost = f" A pass over eight rows costs {eight / first:.1f} times as much as one over a single row."
    else:
        cost = ""
    return (
        f"<h2>What a pass of {escape_html(name)} costs here</h2>"
        f'<p class="note">A draft of m - 1 tokens needs a pass over m rows: it pays where it saves more than that costs.'
        f"{cost}</p>"
        f'<div class="cards"><div class="card">{svg_chart(lines, "rows of a pass (m)", "milliseconds, t(m)")}</div></div>'
    )


ROWS = 32
"""Of a pass that is drawn: larger ones are parts of prompts."""


def _points(table: Mapping[int, float]) -> list[tuple[float, float]]:
    # The profile reaches to rows that only prompts feed.
    return [(m, t) for m, t in sorted(table.items()) if m <= ROWS]


def _figures(rows: Sequence[Row]) -> str:
    """Every row, folded away."""
    # The overview's columns once more, now for every cell and workload.
    columns = _columns(rows)
    head = "".join(f"<th>{escape_html(name)}</th>" for name, _ in columns)
    lines = "".join(
        f'<tr><td class="l">{escape_html(r["model"])}</td><td>{r["batch"]}</td><td>{r["temperature"]:g}</td>'
        f'<td class="l">{escape_html(r["workload"])}</td><td class="l">{escape_html(r["method"])}</td>'
        + "".join(f"<td>{shown(r)}</td>" for _, shown in columns)
        + "</tr>"
        for r in rows
    )
    return (
        '<details><summary>All figures</summary><div class="wide"><table><tr><th class="l">model</th><th>batch</th>'
        f'<th>temperature</th><th class="l">workload</th><th class="l">method</th>{head}</tr>{lines}</table></div></details>'
    )
