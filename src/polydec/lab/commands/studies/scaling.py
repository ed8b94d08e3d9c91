"""`polydec bench --suite scaling`: how acceptance grows with a drafter's training and size, and how
wide a tree pays."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.base.errors import RequestError
from polydec.cli.flags import LOADED
from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.study_report import Row, StudyReport, StudyRequest, StudySuite


def measure_scaling(asked: StudyRequest) -> StudyReport:
    """Measure every drafter of the folder on held-out prompts.

    Raises:
        RequestError: No folder is named, or it holds no drafter.
    """
    from polydec.lab.bench import scaling

    # Its drafters take hours to train, so they are made beforehand.
    if asked.from_ is None:
        raise RequestError(
            f"suite is 'scaling': say with --from where the drafters are that `{scaling.MADE_BY} DIR/NAME` made"
        )
    lm = asked.flags.load()
    drafters = scaling.drafters_of(asked.from_, lm)
    prompts = scaling.prompts_of(asked.from_, lm.checkpoint.lm.vocab.size, asked.each)
    rows = list(scaling.scaling_rows(lm, drafters, prompts))
    return StudyReport(
        f"How acceptance grows with training and size: {lm.name}",
        rows,
        (
            ("law", lambda r: r["law"]),
            ("drafter", lambda r: r["drafter"]),
            ("layers", lambda r: str(r["layers"])),
            ("parameters", lambda r: f"{r['parameters']:,}"),
            ("tokens", lambda r: f"{r['tokens']:,}"),
            ("accepted", lambda r: f"{r['accepted']:.3f}"),
            ("95 %", lambda r: f"{r['low']:.3f} to {r['high']:.3f}"),
        ),
        (
            f"{len(prompts)} held-out prompts, chains of {scaling.DEPTH}; accepted: drafted tokens that a pass accepts, a "
            "mean; intervals by drawing prompts with replacement",
            *(_law(rows, law) for law in scaling.LAWS),
            "width of a tree by sequences at once, by the costs measured here: "
            + ",".join(
                f"{batch}:{width}" for batch, width in scaling.scylla_tree_widths(lm, drafters)
            ),
        ),
        [(f"Accepted tokens a pass, {law}", _drawn(rows, law)) for law in scaling.LAWS],
        {"law", "drafter"},
    )


def _law(rows: Sequence[Row], name: str) -> str:
    """The fitted law in words, or why there is none."""
    from polydec.lab.bench import scaling

    try:
        law = scaling.fit_scaling_law(scaling.scaling_points(rows, name))
    except RequestError as why:
        return f"{name}: no law is fitted ({why})"
    # Without the constant; an additive law has no factor for the product.
    said = ", ".join(
        f"{what} {factor:+.3f} ± {error:.3f}"
        for what, factor, error in zip(
            ("a doubling of the tokens", "one of the parameters", "both together"),
            law.factors[1:],
            law.errors[1:],
            strict=False,
        )
    )
    return f"{name}: {said}; R² {law.explained:.2f}, error at points left out {law.left_out:.3f}"


def _drawn(rows: Sequence[Row], law: str) -> str:
    mine = sorted((r for r in rows if r["law"] == law), key=lambda r: r["tokens"])
    lines = [
        ChartSeries(
            f"{n} layer{'s' * (n > 1)}",
            [(float(r["tokens"]), r["accepted"]) for r in mine if r["layers"] == n],
            ink,
            [(r["low"], r["high"]) for r in mine if r["layers"] == n],
        )
        # One line for each number of layers: its points differ in training alone.
        for n, ink in zip(sorted({r["layers"] for r in mine}), INKS)
    ]
    return svg_chart(lines, "tokens of training", "accepted tokens a pass")


SUITE = StudySuite(measure_scaling, 24, takes=LOADED, from_=True)
