"""A bench as a page that one can send: speed-ups by kind of work, where drafts are right, where
time goes, what passes cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polydec.base.page_templates import render_page_template
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.request.profile import PassProfile

Row = Mapping[str, Any]


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
    methods = list(dict.fromkeys(r["method"] for r in rows))
    # A method has one colour on the whole page.
    ink = {m: INKS[i % len(INKS)] for i, m in enumerate(methods)}
    machines = dict.fromkeys(m["machine"] for m in identity["models"])
    names = ", ".join(dict.fromkeys(m["name"] for m in identity["models"]))
    return render_page_template(
        "lab/commands/bench_page.html.jinja",
        title=f"Methods of decoding {names}, side by side",
        machines="; ".join(machines),
        models="; ".join(map(_model, identity["models"])),
        versions=identity["versions"],
        today=time.strftime("%Y-%m-%d"),
        command=command,
        doubts=doubts,
        # One part for each model, batch and temperature.
        cells=[
            _of_cell([r for r in rows if _cell(r) == at], ink, _title(at))
            for at in dict.fromkeys(map(_cell, rows))
        ],
        passes=[(name, *_passes(curve)) for name, curve in curves.items()],
        rows=rows,
        ink=ink,
        parts=PARTS,
        ratio=_ratio,
        between=_between,
        columns_of=_columns,
    )


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


def _model(about: Mapping[str, Any]) -> str:
    if about["draft"]:
        draft = f", draft {about['draft']}"
    else:
        draft = ""
    return f"{about['name']} ({about['kernel']}, {about['dtype']}, {about['template']}{draft})"


def _of_cell(rows: Sequence[Row], ink: Mapping[str, str], title: str) -> dict[str, Any]:
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
    workloads = [("All prompts" if others else overall, total)]
    workloads += [(n, [r for r in rows if r["workload"] == n]) for n in others]
    # Faster beyond chance: the whole 95 % interval lies above 1.
    sure = [r for r in total[1:] if r["ratio_interval"] and r["ratio_interval"][0] > 1]
    return {
        "title": title,
        "rows": total,
        "best": max(sure, key=_ratio, default=None),
        "workloads": workloads,
        "top": top,
        "depth": _depth(total, ink),
        "quality": _quality(total, ink),
    }


def _ratio(r: Row) -> float:
    return r["ratio_to_plain"] or 0.0


def _columns(rows: Sequence[Row]) -> list[tuple[str, Callable[[Row], tuple[str, str]]]]:
    """What a table shows: heads, and of a row a figure and what stands small beside it; what nobody
    measured has no column."""
    # Most machines do not say their energy, and most prompts have no known answer.
    energy = any(r["joules_per_token"] is not None for r in rows)
    judged = any(r["judged"] for r in rows)
    return [
        ("tokens/s", lambda r: (f"{r['tokens_per_second']:.1f}", "")),
        ("ratio", lambda r: (f"{_ratio(r):.2f}", _between(r["ratio_interval"]))),
        ("tokens/pass", lambda r: (f"{r['tokens_per_pass'] or 0:.2f}", "")),
        ("accepted", lambda r: (f"{r['mean_acceptance_length']:.2f}", "")),
        ("first token", lambda r: (_ms(r["time_to_first_token"]), "")),
        ("gap (99 %)", lambda r: (_ms(r["gap"]), _ms(r["gap_99"]))),
        ("caches", lambda r: (f"{r['cache_bytes'] / 2**20:.1f} MB", "")),
        *(
            [("joules a token", lambda r: (f"{r['joules_per_token'] or 0:.2f}", ""))]
            if energy
            else []
        ),
        ("same text", lambda r: ("yes" if r["identical"] else "no", "")),
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


def _right(r: Row) -> tuple[str, str]:
    if r["right"] is None:
        return "–", ""
    low, high = r["right_interval"]
    return f"{r['right']:.0%}", f"{low:.0%} to {high:.0%}"


PARTS = (
    ("target_share", "var(--a)", "passes of the model"),
    ("other_share", "var(--b)", "of drafts and others"),
    ("rest_share", "var(--line)", "the rest"),
)
"""Where the seconds went: the field of a row, a colour, and what it is."""


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
    if not lines:
        return ""
    return svg_chart(
        lines,
        "depth of the drafted token",
        "drafts that were right so deep",
        most=1.0,
        percent=True,
        whole=True,
    )


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
    if not lines:
        return ""
    return svg_chart(
        lines,
        "tokens a second",
        f"answers that are right, of {rows[0]['judged']}",
        joined=False,
        low=(0.0, 0.0),
        most=1.0,
        percent=True,
    )


def _passes(curve: PassProfile) -> tuple[float | None, str]:
    """How many times as much as one row eight cost, None where a quick profile has no such pass;
    and what a pass over m rows costs on this machine, drawn."""
    lines = [
        ChartSeries(f"behind {context} tokens", _points(table), ink)
        for context, table, ink in (
            (curve.context, curve.rows, INKS[0]),
            (curve.far_context, curve.far, INKS[1]),
        )
    ]
    eight = curve.rows.get(8)
    if eight is None:
        cost = None
    else:
        cost = eight / curve.rows[1]
    return cost, svg_chart(lines, "rows of a pass (m)", "milliseconds, t(m)")


ROWS = 32
"""Of a pass that is drawn: larger ones are parts of prompts."""


def _points(table: Mapping[int, float]) -> list[tuple[float, float]]:
    # The profile reaches to rows that only prompts feed.
    return [(m, t) for m, t in sorted(table.items()) if m <= ROWS]
