"""`polydec bench --suite steps`: accuracy against the steps that may be written."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.study_report import (
    Row,
    StudyReport,
    StudyRequest,
    StudySuite,
    format_percent,
    format_percent_range,
)


def measure_steps(asked: StudyRequest) -> StudyReport:
    """Measure every model of the folder on the words of its task.

    Raises:
        RequestError: No folder is named, or it holds no model.
    """
    from polydec.lab.bench import steps
    from polydec.lab.bench.measure import MethodSetting, parse_method_setting

    if asked.from_ is None:
        raise RequestError(
            f"suite is 'steps': say with --from where the models are that `{steps.MADE_BY} DIR` made"
        )
    if asked.methods is None:
        method = MethodSetting("plain", {})
    else:
        method = parse_method_setting(asked.methods)
    rows = list(steps.steps_accuracy_rows(steps.models_of(asked.from_), method, asked.each))
    # Models of one task differ in their seeds alone.
    seeds = max(len(r["each_seed"]) for r in rows)
    return StudyReport(
        "What written steps buy: word problems of automata",
        rows,
        (
            ("task", lambda r: r["task"]),
            ("symbols", lambda r: f"{r['length']}{'' if r['trained_on'] else ' (longer)'}"),
            ("budget", lambda r: r["budget"]),
            ("steps", lambda r: f"{r['steps']:.1f}"),
            ("right", lambda r: format_percent(r["right"])),
            ("95 %", lambda r: format_percent_range(r["low"], r["high"])),
            ("chance", lambda r: format_percent(r["chance"])),
            ("forced", lambda r: format_percent(r["forced"])),
            ("passes", lambda r: f"{r['passes']:.1f}"),
        ),
        (
            f"{seeds} seeds, {asked.each} words each, greedy by {method.label}; interval: the wider "
            "one of Student's over seeds and Wilson's over words; forced: the answer's mark was put where the budget ended",
        ),
        [x for task in dict.fromkeys(r["task"] for r in rows) for x in _drawn(task, rows)],
        {"task", "budget"},
    )


def _drawn(task: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Accuracy by length, a line a budget; and by steps, a line a length."""
    mine = sorted((r for r in rows if r["task"] == task), key=lambda r: (r["length"], r["steps"]))
    budgets = list(dict.fromkeys(r["budget"] for r in mine))
    lengths = list(dict.fromkeys(r["length"] for r in mine))
    by_length = [
        _line(budget, [r for r in mine if r["budget"] == budget], "length", ink)
        for budget, ink in zip(budgets, INKS)
    ]
    # The accuracy of guessing, as a line to compare with.
    chance = [(float(n), next(r["chance"] for r in mine if r["length"] == n)) for n in lengths]
    by_length.append(ChartSeries("chance", chance, "var(--soft)"))
    by_steps = [
        _line(f"{n} symbols", [r for r in mine if r["length"] == n], "steps", ink)
        for n, ink in zip(lengths, INKS)
    ]
    up = "right answers"
    whole = {"most": 1.0, "percent": True}
    return [
        (f"{task}: by the length of the word", svg_chart(by_length, "symbols", up, **whole)),
        (f"{task}: by the steps before the answer", svg_chart(by_steps, "steps", up, **whole)),
    ]


def _line(name: str, rows: Sequence[Row], across: str, ink: str) -> ChartSeries:
    points = [(float(r[across]), float(r["right"])) for r in rows]
    return ChartSeries(name, points, ink, [(r["low"], r["high"]) for r in rows])


SUITE = StudySuite(measure_steps, 100, methods=True, from_=True)
