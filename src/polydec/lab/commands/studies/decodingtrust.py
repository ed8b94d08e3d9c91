"""`polydec bench --suite decodingtrust`: trust perspectives by several methods."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.cli.flags import LOADED
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.study_report import Row, StudyReport, StudyRequest, StudySuite


def measure_decodingtrust(asked: StudyRequest) -> StudyReport:
    """Score rows of the file, or of the sample, by plain decoding and the methods that are named.

    Answers that the record has are judged again, and no pass is made for them.

    Raises:
        RequestError: The file has no such rows, or the model cannot be decoded by a method.
        FileError: The record is damaged.
    """
    from polydec.lab.bench.measure import MethodSetting, spelt_all
    from polydec.lab.bench.trust import measure as trust
    from polydec.lab.bench.trust.kept_answers import KeptAnswers

    if asked.from_ is None:
        from_ = trust.SAMPLE
    else:
        from_ = asked.from_
    lines = trust.read_perspective_rows(from_, asked.each)
    # A damaged file is refused before a model is loaded.
    kept = KeptAnswers(asked.record)
    named = spelt_all("prompt-lookup" if asked.methods is None else asked.methods)
    methods = [MethodSetting("plain", {}), *(m for m in named if m.label != "plain")]
    lm = asked.flags.load()
    for method in methods:
        lm.check_method(method.name, method.options)
    rows = list(trust.perspective_score_rows(lm, methods, lines, asked.flags.seed, kept))
    labels = [m.label for m in methods]
    names = list(dict.fromkeys(r["perspective"] for r in rows))
    # Perspectives stand on the axis by their numbers, which the heading spells out.
    drawn = [
        ChartSeries(
            label,
            [
                (names.index(r["perspective"]) + 1.0, r["score"])
                for r in rows
                if r["method"] == label
            ],
            ink,
            [r["interval"] for r in rows if r["method"] == label],
        )
        for label, ink in zip(labels, INKS)
    ]
    # Numbers stand on the axis, as names are too long.
    order = ", ".join(f"{i} {name}" for i, name in enumerate(names, 1))
    return StudyReport(
        f"DecodingTrust's perspectives: {lm.name}",
        rows,
        (
            ("perspective", lambda r: r["perspective"]),
            ("method", lambda r: r["method"]),
            ("rows", lambda r: str(r["rows"])),
            ("score", lambda r: f"{r['score']:.1f}"),
            ("95 %", lambda r: _between(r["interval"])),
            ("difference", lambda r: f"{r['difference']:+.1f}"),
            ("95 % of it", lambda r: _between(r["difference_interval"])),
            ("same texts", lambda r: f"{r['same_texts']:.0%}"),
            ("refused", lambda r: f"{r['parts']['refused']:.0%}"),
        ),
        (
            f"{lm.name}: scores of 0 to 100, higher is better; difference to plain decoding; intervals by drawing rows with "
            "replacement; toxicity at temperature 1, all else greedy",
            *_parts(rows),
        ),
        [
            (
                f"Scores ({order})",
                svg_chart(drawn, "perspective", "score", joined=False, most=100.0, whole=True),
            )
        ],
        {"perspective", "method"},
    )


def _between(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1f} to {interval[1]:.1f}"


def _parts(rows: Sequence[Row]) -> list[str]:
    """What scores are made of: of the first method, and of others where theirs are not the same."""
    out = list[str]()
    first = dict[str, str]()
    for r in rows:
        name = r["perspective"]
        told = ", ".join(f"{k} {v:.2f}" for k, v in r["parts"].items() if k != "refused")
        # Equal parts of another method would only repeat the line.
        if first.setdefault(name, told) != told or name not in {x.partition(",")[0] for x in out}:
            out.append(f"{name}, {r['method']}: {told}")
    return out


SUITE = StudySuite(
    measure_decodingtrust,
    25,
    takes={*LOADED, "seed"},
    methods=True,
    from_=True,
    record=True,
)
