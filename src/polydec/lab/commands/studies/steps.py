"""`polydec bench --suite steps`: accuracy against the steps that may be written."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.cli.page import INKS, Line, figure
from polydec.lab.commands.studies.told import Asked, Row, Suite, Told, between, percent


def measure(asked: Asked) -> Told:
    """Every model of the folder on the words of its task. Raises RequestError where no folder, or no model, is named."""
    from polydec.lab.bench import steps
    from polydec.lab.bench.measure import Method, spelt

    if asked.from_ is None:
        raise RequestError(
            f"suite is 'steps': say with --from where the models are that `{steps.MADE_BY} DIR` made"
        )
    method = Method("plain", {}) if asked.methods is None else spelt(asked.methods)
    rows = list(steps.rows(steps.models_of(asked.from_), method, asked.each))
    seeds = max(len(r["each_seed"]) for r in rows)
    return Told(
        "What written steps buy: word problems of automata",
        rows,
        (
            ("task", lambda r: r["task"]),
            ("symbols", lambda r: f"{r['length']}{'' if r['trained_on'] else ' (longer)'}"),
            ("budget", lambda r: r["budget"]),
            ("steps", lambda r: f"{r['steps']:.1f}"),
            ("right", lambda r: percent(r["right"])),
            ("95 %", lambda r: between(r["low"], r["high"])),
            ("chance", lambda r: percent(r["chance"])),
            ("forced", lambda r: percent(r["forced"])),
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
    chance = [(float(n), next(r["chance"] for r in mine if r["length"] == n)) for n in lengths]
    by_length.append(Line("chance", chance, "var(--soft)"))
    by_steps = [
        _line(f"{n} symbols", [r for r in mine if r["length"] == n], "steps", ink)
        for n, ink in zip(lengths, INKS)
    ]
    up, whole = "right answers", {"most": 1.0, "percent": True}
    return [
        (f"{task}: by the length of the word", figure(by_length, "symbols", up, **whole)),
        (f"{task}: by the steps before the answer", figure(by_steps, "steps", up, **whole)),
    ]


def _line(name: str, rows: Sequence[Row], across: str, ink: str) -> Line:
    points = [(float(r[across]), float(r["right"])) for r in rows]
    return Line(name, points, ink, [(r["low"], r["high"]) for r in rows])


SUITE = Suite(measure, 100, methods=True, from_=True)
