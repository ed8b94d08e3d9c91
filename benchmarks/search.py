"""Accuracy on held-out problems in steps against what is written for it: greedy, votes, best of n, A*, beams and others.

    python benchmarks/search.py [--model zoo:reasoner] [--reward zoo:reasoner-prm] [--problems 70] [--csv FILE] [--svg FILE]

Problems are of seeds and of questions that nothing was trained on (lab/train/problems.py: SHA-1 of
the question), as many of each kind. An answer counts where the checker accepts all of it, every
step: the reward is learned and never the checker. Every method sees the same problems, so
differences are paired: intervals are of a bootstrap over problems (95 %). Tokens are those of all
texts that were tried; positions are what the model was fed, prompt included, and their share is of
what as many texts would feed that share nothing; seconds are CPU seconds of the process, many
requests at a time."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv

from polydec import api
from polydec.lab.train.problems import KINDS, ReasoningProblem, draw_problem, is_right_solution


@dataclass(frozen=True)
class Way:
    """How a row is made. family: its line of the plot; texts: how many texts it tries, 0: it cannot be said; judged: whether
    the reward is there."""

    name: str
    family: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    texts: int = 0
    judged: bool = False
    greedy: bool = False


GREEDY, BEST = "greedy", "best of 8 by reward"
WAYS = [
    Way(GREEDY, "greedy", "plain", greedy=True),
    *(
        Way(f"best of {n} by reward", "best of n by reward", "best-of-n", {"tries": n}, n, True)
        for n in (8, 4, 2)
    ),
    *(
        Way(f"weighted vote of {n}", "weighted vote", "weighted-voting", {"tries": n}, n, True)
        for n in (8, 4)
    ),
    *(
        Way(f"A*, {k} steps", "A*", "a-star-decoding", {"width": k, "budget": 256}, 0, True)
        for k in (2, 3, 4)
    ),
    *(
        Way(
            f"A*, 1 step, again {c}",
            "A*, again",
            "a-star-decoding",
            {"width": 1, "again": c, "budget": 160},
            0,
            True,
        )
        for c in (0.4, 0.6, 0.8)
    ),
    Way(
        "A*, 1 step, again 0.25, sure 0.99",
        "A*, sure",
        "a-star-decoding",
        {"width": 1, "again": 0.25, "sure": 0.99, "budget": 256},
        0,
        True,
    ),
    *(
        Way(
            f"beam of steps, {keep} of {keep * width}",
            "beam of steps",
            "step-beam",
            {"keep": keep, "width": width},
            0,
            True,
        )
        for keep, width in ((2, 2), (2, 4), (4, 2))
    ),
    Way(
        "iterative, 4 rounds of 2",
        "iterative",
        "iterative-agent-decoding",
        {"rounds": 4, "tries": 2},
        0,
        True,
    ),
    Way("one sample", "one sample", "plain"),
    *(Way(f"majority of {n}", "majority", "self-consistency", {"tries": n}, n) for n in (4, 8)),
    Way(
        "complexity voting, 5 of 8",
        "complexity voting",
        "complexity-voting",
        {"tries": 8, "keep": 5},
        8,
    ),
    Way("likeliest of 8", "likeliest of n", "best-of-n", {"tries": 8}, 8),
    Way("HyPER from 4", "HyPER", "pool-with-forks", {"tries": 4, "interval": 8, "budget": 256}),
    Way("first of 8", "first finish", "first-finish-search", {"tries": 8}, 8),
    Way("beam of 4", "beam", "beam", {"width": 4}, 4, greedy=True),
    Way("CNTP", "CNTP", "cntp"),
    *(
        Way(
            f"STOC-TOT, {n} of {3 * n}", "STOC-TOT", "stoc-tot", {"steps": 3, "keep": n, "depth": 8}
        )
        for n in (2, 4)
    ),
]


@dataclass(frozen=True)
class Row:
    """What one way did, problem by problem. alone: positions that its texts would feed if they shared nothing."""

    way: Way
    right: tuple[bool, ...]
    tokens: tuple[int, ...]
    positions: float
    alone: float
    judged: float
    seconds: float

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.right) / len(self.right)

    @property
    def written(self) -> float:
        return sum(self.tokens) / len(self.tokens)


def measure(
    lm: api.LoadedModel, way: Way, asked: Sequence[ReasoningProblem], temperature: float
) -> Row:
    engine, start = api.Engine(lm, max_running=16), time.process_time()
    sampling = lm.sampling_with(temperature=0.0 if way.greedy else temperature)
    tickets = [
        engine.submit(
            p.question,
            method=way.method,
            options=way.options,
            max_tokens=96,
            sampling=sampling,
            seed=i,
        )
        for i, p in enumerate(asked)
    ]
    engine.run(tickets)
    seconds = time.process_time() - start
    done = [t.completion() for t in tickets]
    tokens = tuple(d.metrics.get("tokens_written", d.usage["completion_tokens"]) for d in done)
    prompts = sum(d.usage["prompt_tokens"] for d in done)
    total = lambda key: sum(d.metrics.get(key, 0) for d in done)  # noqa: E731
    n = len(done)
    return Row(
        way,
        tuple(is_right_solution(p, d.text) for p, d in zip(asked, done)),
        tokens,
        total("positions_fed") / n,
        (max(1, way.texts) * prompts + sum(tokens)) / n,
        total("texts_judged") / n,
        seconds / n,
    )


def interval(paired: Sequence[float]) -> str:
    """The mean of differences, problem by problem, in points, and its 95 % interval by a bootstrap."""
    values = 100 * np.asarray(paired, float)
    low, high = central_interval(drawn_again(values).mean(1))
    return f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def table(rows: Sequence[Row], asked: Sequence[ReasoningProblem]) -> list[dict[str, Any]]:
    out, by_name = list[dict[str, Any]](), {r.way.name: r for r in rows}
    greedy, best = by_name[GREEDY], by_name.get(BEST)
    over = lambda row, other: interval([a - b for a, b in zip(row.right, other.right, strict=True)])  # noqa: E731
    for row in rows:
        some = {k: [r for r, p in zip(row.right, asked) if p.kind == k] for k in KINDS}
        out.append(
            {
                "method": row.way.name,
                "accuracy": f"{row.accuracy:.1f}",
                "over greedy": over(row, greedy),
                "over best of 8": "" if best is None else over(row, best),
                **{k: f"{100 * sum(v) / len(v):.0f}" for k, v in some.items()},
                "tokens written": f"{row.written:.0f}",
                "of best of 8": "" if best is None else f"{row.written / best.written:.2f}",
                "positions fed": f"{row.positions:.0f}",
                "of texts alone": f"{row.positions / row.alone:.2f}" if row.way.texts else "",
                "texts judged": f"{row.judged:.1f}",
                "CPU seconds": f"{row.seconds:.4f}",
            }
        )
    return out


COLOURS = (
    "#000000",
    "#777777",
    "#1b6ca8",
    "#17becf",
    "#d98b1f",
    "#b2182b",
    "#5aae61",
    "#1b7837",
    "#a6d96a",
    "#9970ab",
    "#8c510a",
    "#e377c2",
    "#bcbd22",
    "#f4a582",
    "#35978f",
)


def svg(rows: Sequence[Row]) -> str:
    """Accuracy over tokens written and over seconds (both double from line to line); a line for each family."""
    width, height, panel = 1060, 440, 380
    families = list(dict.fromkeys(r.way.family for r in rows))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for at, name, value in (
        (60, "tokens written a problem", lambda r: r.written),
        (60 + panel + 50, "CPU milliseconds a problem", lambda r: 1000 * r.seconds),
    ):
        out += _panel(rows, families, value, name, at, 24, panel, height - 80)
    for i, family in enumerate(families):
        colour = COLOURS[i % len(COLOURS)]
        out += [
            f'<circle cx="{width - 160}" cy="{34 + 20 * i}" r="4" fill="{colour}"/>',
            f'<text x="{width - 150}" y="{38 + 20 * i}">{escape(family)}</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(
    rows: Sequence[Row],
    families: Sequence[str],
    value: Any,
    name: str,
    left: int,
    top: int,
    width: int,
    height: int,
) -> list[str]:
    low, high = (
        f(v) for f, v in zip((math.floor, math.ceil), _ends([math.log2(value(r)) for r in rows]))
    )
    bottom, ceiling = (
        10 * f(v / 10) for f, v in zip((math.floor, math.ceil), _ends([r.accuracy for r in rows]))
    )
    x = lambda v: left + (math.log2(v) - low) / max(1, high - low) * width  # noqa: E731
    y = lambda v: top + (ceiling - v) / max(1, ceiling - bottom) * height  # noqa: E731
    out = list[str]()
    for v in range(bottom, ceiling + 1, 10):
        out += [
            f'<line x1="{left}" x2="{left + width}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v} %</text>',
        ]
    for e in range(low, high + 1):
        out += [
            f'<line x1="{x(2.0**e):.1f}" x2="{x(2.0**e):.1f}" y1="{top}" y2="{top + height}" stroke="#eee"/>',
            f'<text x="{x(2.0**e):.1f}" y="{top + height + 18}" text-anchor="middle">{2.0**e:g}</text>',
        ]
    out.append(
        f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">{name}</text>'
    )
    for i, family in enumerate(families):
        colour, some = (
            COLOURS[i % len(COLOURS)],
            sorted((r for r in rows if r.way.family == family), key=value),
        )
        points = " ".join(f"{x(value(r)):.1f},{y(r.accuracy):.1f}" for r in some)
        out += [
            f'<polyline points="{points}" fill="none" stroke="{colour}"/>',
            *(
                f'<circle cx="{x(value(r)):.1f}" cy="{y(r.accuracy):.1f}" r="4" fill="{colour}"/>'
                for r in some
            ),
        ]
    return out


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default="zoo:reasoner")
    p.add_argument(
        "--reward",
        default="zoo:reasoner-prm",
        help="a process reward model for it: a directory or zoo:NAME",
    )
    p.add_argument("--problems", type=int, default=70, help="of each kind and seed")
    p.add_argument("--temperature", type=float, default=0.6)
    p.add_argument(
        "--seed", type=int, nargs="+", default=[77], help="of the problems: others than training's"
    )
    p.add_argument(
        "--training",
        action="store_true",
        help="problems of the kind that is trained on: to choose settings with",
    )
    p.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="rows whose names hold one of these, beside greedy and best of 8",
    )
    p.add_argument("--csv", type=Path)
    p.add_argument("--svg", type=Path)
    a = p.parse_args()
    asked = [
        draw_problem(kind, seed, i, unseen=not a.training)
        for seed in a.seed
        for kind in KINDS
        for i in range(a.problems)
    ]
    lm = api.load(a.model, draft=None, threads=1, trained=[a.reward])
    bare = api.LoadedModel(lm.checkpoint, lm.draft, ())
    rows = list[Row]()
    for way in WAYS:
        if any(some in way.name for some in a.only) or way.name in (GREEDY, BEST):
            rows.append(measure(lm if way.judged else bare, way, asked, a.temperature))
            lines = table(rows, asked)
            print(
                "  ".join(f"{k} {v}" for k, v in lines[-1].items() if v),
                file=sys.stderr,
                flush=True,
            )
            if a.csv:
                write_csv(a.csv, lines)
            if a.svg:
                a.svg.write_text(svg(rows), "utf-8")


if __name__ == "__main__":
    main()
