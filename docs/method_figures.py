"""Of each method what its paper reports, and what was measured of it here: rows of the tables in lab/reports."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polydec.methods.registry.card import Card

REPORTS = Path(__file__).parents[1] / "lab" / "reports"
sys.path.append(str(REPORTS))
import orders  # noqa: E402

Row = Mapping[str, str]

OLD_NAMES = {
    "draft-and-verify": "layer-skip",
    "layerskip": "early-exit",
    "del": "dynamic-exit",
    "calm": "confidence-exit",
    "specmquant": "hierarchical",
    "merged-drafts": "grafted",
    "eagle-2-tree": "draft-model-best-first",
}
"""What measured tables call a method that had another name then."""

COMMAND = re.compile(r"^`(python benchmarks/[^`]+)`", re.M)


@dataclass(frozen=True)
class Measured:
    """A table in which some methods stand.

    file: in lab/reports; about: what was measured, a sentence; page: the report there that tells it in
    full; mine: whether a row is a method's; columns: each column's heading and what stands there;
    commands: what made these rows.
    """

    file: str
    about: str
    page: str
    mine: Callable[[str, Row], bool]
    columns: Mapping[str, Callable[[Row], str]]
    commands: Callable[[list[Row]], list[str]]

    def section(self, name: str) -> list[str]:
        """The lines of a method's page; none where it is not in this table."""
        rows = [row for row in table(self.file) if self.mine(name, row)]
        if not rows:
            return []
        _first, *rest = self.columns
        return [
            f"{self.about} (what the settings are: `lab/reports/{self.page}`).",
            "",
            f"| {' | '.join(self.columns)} |",
            f"|---|{'--:|' * len(rest)}",
            *(f"| {' | '.join(cell(row) for cell in self.columns.values())} |" for row in rows),
            "",
            "Made by:",
            "",
            "```sh",
            *self.commands(rows),
            "```",
            "",
        ]


@cache
def table(name: str) -> tuple[Row, ...]:
    with (REPORTS / name).open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@cache
def told(section: str) -> tuple[str, ...]:
    """The commands that made a section of lab/reports/all-methods.md."""
    text = (REPORTS / "all-methods.md").read_text("utf-8")
    part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return tuple(COMMAND.findall(part))


def column(name: str) -> Callable[[Row], str]:
    return lambda row: row[name]


def between(value: str, low: str, high: str, unit: str = "") -> Callable[[Row], str]:
    """A figure with its interval, where it has one."""
    return lambda row: (
        f"{row[value]}{unit} ({row[low]} to {row[high]})" if row[low] else f"{row[value]}{unit}"
    )


def always(*commands: str) -> Callable[[list[Row]], list[str]]:
    return lambda rows: list(commands)


SPEEDS = Measured(
    "all-methods-speed.csv",
    "Tokens a second over plain decoding's on the same prompts, with 95 % intervals: SmolLM2-135M in float32 on two "
    "cores of an AMD Zen 4",
    "all-methods.md",
    lambda name, row: row["method"] in {name, OLD_NAMES.get(name, name)},
    {"setting": column("setting"), "here, times": between("all", "all low", "all high")},
    lambda rows: list(dict.fromkeys(line for row in rows for line in told(row["section"]))),
)

TRAINED = Measured(
    "trained.csv",
    "Tokens a pass, greedy, with a draft of at most so many tokens, where plain decoding has 1; 95 % intervals. Tokens a pass "
    "are no speed: on a CPU few of these are faster than plain decoding",
    "trained-measured.md",
    lambda name, row: row["method"].split(" ")[0] == name and row["law"] == "greedy",
    {
        "model": column("model"),
        "trained": lambda row: f"`{row['trained']}`",
        "draft": column("nodes"),
        "here, tokens a pass": between("tokens a pass", "low", "high"),
    },
    always(
        "python benchmarks/trained.py out/hydra out/eagle-3 --held out/hydra/held.jsonl --csv lab/reports/trained.csv"
    ),
)

KINDS = {
    "llada": ("one a pass", "fixed passes"),
    "fast-dllm": ("threshold",),
    "fast-dllm-factor": ("factor",),
    "creditdecoding": ("credit",),
    "localleap": ("local",),
    "ccd": ("ccd", "ccd, agreement"),
    "prophet": ("prophet",),
    "freedave": ("freedave",),
    "dkv-cache": ("dkv-cache",),
    "dkv-cache-greedy": ("dkv-cache-greedy",),
    "freecache": ("freecache", "threshold, freecache"),
    "left-to-right": ("left to right",),
    "learn2pd": ("learn2pd", "learn2pd, two spare gaps"),
    "adjust": ("adjust",),
    "dparallel": ("dparallel",),
    "guided-diffusion": ("guided-diffusion",),
    "insertion-language-models": ("insertion",),
    "diffuspec": ("autoregressive, diffuspec",),
    "block-diffusion": ("block-diffusion",),
    "fast-dllm-v2": ("fast-dllm-v2",),
}
"""What the tables of masked diffusion call a method."""


def _diffusion(file: str, about: str, command: str) -> Measured:
    return Measured(
        file,
        about + ". Saved is against one token a pass, the surest first; 95 % intervals",
        "diffusion-measured.md",
        lambda name, row: (
            row["task"] == "all" and re.sub(r" [0-9.]+$", "", row["policy"]) in KINDS.get(name, ())
        ),
        {
            "setting": column("policy"),
            "right": between("accuracy", "low", "high", " %"),
            "passes saved, times": between("passes_saved", "saved_low", "saved_high"),
            "points lost": between("lost", "lost_low", "lost_high"),
            "time saved, times": column("time_saved"),
        },
        always(command),
    )


SHORT = _diffusion(
    "diffusion-policies.csv",
    "Seven tasks with short answers, 100 of each, by `zoo:diffusion`",
    "python benchmarks/diffusion.py --each 100",
)
LONG = _diffusion(
    "diffusion-long.csv",
    "Five tasks whose answers fill a canvas of 240, eight of each, by `zoo:diffusion`",
    "python benchmarks/diffusion.py --part long --each 8",
)
BLOCKS = _diffusion(
    "diffusion-blocks.csv",
    "Seven tasks with short answers, 100 of each, by `zoo:block-diffusion`",
    "python benchmarks/diffusion.py --model zoo:block-diffusion --each 100 --out docs/diffusion-blocks",
)

SEARCHES = {
    "best-of-n": "best of ",
    "self-consistency": "majority of ",
    "weighted-voting": "weighted vote of ",
    "complexity-voting": "complexity voting",
    "pool-with-forks": "HyPER",
    "first-finish-search": "first of ",
    "a-star-decoding": "A*",
    "step-beam": "beam of steps",
    "iterative-agent-decoding": "iterative",
    "beam": "beam of 4",
    "cntp": "CNTP",
    "stoc-tot": "STOC-TOT",
}
"""How the table of searches begins to call a method."""

SEARCHED = Measured(
    "search.csv",
    "201 held-out problems, answered by `zoo:reasoner` at temperature 0.6 and judged by a checker; differences with 95 % "
    "intervals",
    "search-measured.md",
    lambda name, row: name in SEARCHES and row["method"].startswith(SEARCHES[name]),
    {
        "setting": lambda row: row["method"].replace("*", "\\*"),
        "right, %": column("accuracy"),
        "points over greedy": column("over greedy"),
        "tokens written": column("tokens written"),
    },
    always("python benchmarks/search.py --problems 67 --seed 78 --csv lab/reports/search.csv"),
)

TABLES = (SPEEDS, TRAINED, SHORT, LONG, BLOCKS, SEARCHED)


def section(name: str, card: Card) -> list[str]:
    """What the paper reports, and under it what was measured here."""
    reported = (
        f"**The paper reports** {card.published}."
        if card.published
        else "**Reported**: no figure of a paper is on record here."
    )
    found = orders.section(name)
    found += [line for measured in TABLES for line in measured.section(name)]
    ours = "**Here**, with small models on a CPU:" if found else NOWHERE
    return [reported, "", ours, "", *found]


NOWHERE = "**Here** it stands in no table of its own: see the [measurements](../measurements.md) of its family."
