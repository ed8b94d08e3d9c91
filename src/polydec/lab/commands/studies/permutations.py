"""`polydec bench --suite permutations`: how many networks must vote until a permutation is exact."""

from __future__ import annotations

from polydec.cli.page import INKS, ChartSeries, svg_chart
from polydec.lab.commands.studies.study_report import (
    StudyReport,
    StudyRequest,
    StudySuite,
    format_percent,
    format_percent_range,
)

SIZES = (4, 6, 8)
"""Bits of the inputs."""

WIDTH = 4096
"""Of a network's hidden layer."""


def measure_permutations(asked: StudyRequest) -> StudyReport:
    """Measure `each` networks a seed, over three seeds, each with a permutation of its own."""
    from polydec.lab.bench import permutations

    seed = asked.flags.seed
    rows = list(permutations.permutation_rows(SIZES, WIDTH, asked.each, (seed, seed + 1, seed + 2)))
    needed = permutations.votes_needed(rows)
    lines = [
        ChartSeries(
            f"{k} bits",
            [(float(r["votes"]), r["right"]) for r in rows if r["bits"] == k],
            ink,
            [(r["low"], r["high"]) for r in rows if r["bits"] == k],
        )
        for k, ink in zip(SIZES, INKS)
    ]
    every = [
        # Without intervals: they are in the table.
        ChartSeries(
            f"{k} bits", [(float(r["votes"]), r["all_right"]) for r in rows if r["bits"] == k], i
        )
        for k, i in zip(SIZES, INKS)
    ]
    # The paper's bound grows with the square of the bits.
    told = "; ".join(
        f"{k} bits: {needed.get(k, 'more')} votes (bits squared: {k * k})" for k in SIZES
    )
    return StudyReport(
        "What votes buy: permutations learned from one-hot inputs",
        rows,
        (
            ("bits", lambda r: str(r["bits"])),
            ("votes", lambda r: str(r["votes"])),
            ("inputs right", lambda r: format_percent(r["right"])),
            ("95 %", lambda r: format_percent_range(r["low"], r["high"])),
            ("groups right on all", lambda r: format_percent(r["all_right"])),
            ("95 % of these", lambda r: format_percent_range(*r["all_interval"])),
            ("groups", lambda r: str(r["groups"])),
        ),
        (
            f"{asked.each} networks of width {WIDTH} a seed, 3 seeds; trained on one-hot inputs alone, "
            "asked all nonzero inputs",
            f"fewest votes that are right on all inputs in half of the groups: {told}",
        ),
        [
            (
                "Inputs that are right",
                svg_chart(lines, "votes", "right inputs", most=1.0, percent=True),
            ),
            (
                "Groups that are right on every input",
                svg_chart(every, "votes", "right groups", most=1.0, percent=True),
            ),
        ],
    )


SUITE = StudySuite(measure_permutations, 256, takes={"seed"})
