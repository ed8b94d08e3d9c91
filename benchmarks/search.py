"""Accuracy on held-out problems in steps against what is written for it: greedy, votes, best of n, A*, beams and others.

    python benchmarks/search.py [--model zoo:reasoner] [--reward DIR] [--problems 100] [--csv FILE] [--svg FILE]

Problems are of seeds and of questions that nothing was trained on (train/problems.py: SHA-1 of the question), as many of each
kind. An answer counts where the checker accepts all of it, every step: the reward is learned and never the checker. Every
method sees the same problems, so differences are paired: the interval of "over greedy" is a bootstrap over problems (95 %).
Tokens are those of all texts that were tried; seconds are CPU seconds of the process, many requests at a time.
"""
from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from polydec import api
from polydec.train.problems import KINDS, Problem, make, solved

METHODS: list[tuple[str, str, str, dict[str, Any], bool]] = [
    ("greedy", "greedy", "plain", {}, False),
    ("one sample", "one sample", "plain", {}, False),
    *((f"majority of {n}", "majority", "self-consistency", {"tries": n}, False) for n in (4, 8, 16)),
    ("complexity voting, 5 of 8", "complexity voting", "complexity-voting", {"tries": 8, "keep": 5}, False),
    *((f"likeliest of {n}", "likeliest of n", "best-of-n", {"tries": n}, False) for n in (2, 4, 8, 16)),
    *((f"best of {n} by reward", "best of n by reward", "best-of-n", {"tries": n}, True) for n in (2, 4, 8, 16)),
    *((f"A*, {k} steps, {b} tokens", "A*", "a-star-decoding", {"width": k, "budget": b}, True)
      for k, b in ((2, 64), (2, 256), (4, 96), (4, 256), (8, 512))),
    *((f"first of {n}", "first finish", "first-finish-search", {"tries": n}, False) for n in (4, 8)),
    *((f"beam of {n}", "beam", "beam", {"width": n}, False) for n in (2, 4, 8)),
    ("CNTP", "cntp", "cntp", {}, False),
]
"""Name, family (a line of the plot), method, options, whether the reward is there."""


@dataclass(frozen=True)
class Row:
    """What one method did, problem by problem."""
    name: str
    family: str
    right: tuple[bool, ...]
    tokens: float
    positions: float
    judged: float
    seconds: float

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.right) / len(self.right)


def measure(lm: api.LM, name: str, family: str, method: str, options: dict[str, Any], asked: list[Problem],
            temperature: float) -> Row:
    engine, start = api.Engine(lm, max_running=16), time.process_time()
    sampling = lm.sampling(temperature=0.0 if name == "greedy" or method == "beam" else temperature)
    tickets = [engine.submit(p.question, method=method, options=options, max_tokens=96, sampling=sampling, seed=i)
               for i, p in enumerate(asked)]
    engine.run(tickets)
    done = [t.completion() for t in tickets]
    spent = [d.metrics for d in done]
    mean = lambda key, other: sum(m.get(key, o) for m, o in zip(spent, other)) / len(spent)  # noqa: E731
    written = [d.usage["completion_tokens"] for d in done]
    return Row(name, family, tuple(solved(p, d.text) for p, d in zip(asked, done)), mean("tokens_written", written),
               mean("positions_fed", written), mean("texts_judged", [0] * len(done)),
               (time.process_time() - start) / len(done))


def over(row: Row, other: Row) -> tuple[float, float, float]:
    """Points over another, and the 95 % interval of a paired bootstrap."""
    paired = [int(a) - int(b) for a, b in zip(row.right, other.right, strict=True)]
    r, n = random.Random(0), len(paired)
    means = sorted(100 * sum(r.choices(paired, k=n)) / n for _ in range(2000))
    return 100 * sum(paired) / n, means[50], means[1949]


def table(rows: list[Row], asked: list[Problem]) -> list[dict[str, Any]]:
    out = list[dict[str, Any]]()
    for row in rows:
        points, low, high = over(row, rows[0])
        some = {k: [r for r, p in zip(row.right, asked) if p.kind == k] for k in KINDS}
        out.append({"method": row.name, "accuracy": f"{row.accuracy:.1f}", "over greedy": f"{points:+.1f}",
                    "95 % interval": f"{low:+.1f} to {high:+.1f}",
                    **{k: f"{100 * sum(v) / len(v):.0f}" for k, v in some.items()},
                    "tokens written": f"{row.tokens:.0f}", "positions fed": f"{row.positions:.0f}",
                    "texts judged": f"{row.judged:.1f}", "CPU seconds": f"{row.seconds:.3f}"})
    return out


COLOURS = ("#000000", "#777777", "#1b6ca8", "#7fb2d6", "#d98b1f", "#b2182b", "#5aae61", "#9970ab", "#8c510a", "#e377c2")


def svg(rows: list[Row]) -> str:
    """Accuracy over tokens written (each line doubles); a line for each family."""
    import math
    width, height, left, top = 760, 420, 60, 24
    xs = [math.log2(r.tokens) for r in rows]
    low, high = math.floor(min(xs)), math.ceil(max(xs))
    bottom, ceiling = 10 * math.floor(min(r.accuracy for r in rows) / 10), 10 * math.ceil(max(r.accuracy for r in rows) / 10)
    x = lambda tokens: left + (math.log2(tokens) - low) / (high - low) * (width - left - 200)  # noqa: E731
    y = lambda accuracy: top + (ceiling - accuracy) / max(1, ceiling - bottom) * (height - top - 50)  # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for v in range(bottom, ceiling + 1, 10):
        out += [f'<line x1="{left}" x2="{width - 200}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>',
                f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v} %</text>']
    for e in range(low, high + 1):
        out += [f'<line x1="{x(2 ** e):.1f}" x2="{x(2 ** e):.1f}" y1="{top}" y2="{height - 50}" stroke="#eee"/>',
                f'<text x="{x(2 ** e):.1f}" y="{height - 32}" text-anchor="middle">{2 ** e}</text>']
    out.append(f'<text x="{(left + width - 200) / 2}" y="{height - 10}" text-anchor="middle">tokens written a problem</text>')
    for i, family in enumerate(dict.fromkeys(r.family for r in rows)):
        colour, some = COLOURS[i % len(COLOURS)], [r for r in rows if r.family == family]
        points = " ".join(f"{x(r.tokens):.1f},{y(r.accuracy):.1f}" for r in sorted(some, key=lambda r: r.tokens))
        out += [f'<polyline points="{points}" fill="none" stroke="{colour}"/>',
                *(f'<circle cx="{x(r.tokens):.1f}" cy="{y(r.accuracy):.1f}" r="4" fill="{colour}"/>' for r in some),
                f'<circle cx="{width - 184}" cy="{top + 10 + 20 * i}" r="4" fill="{colour}"/>',
                f'<text x="{width - 174}" y="{top + 14 + 20 * i}">{escape(family)}</text>']
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default="zoo:reasoner")
    p.add_argument("--reward", help="directory of a process reward model (default: the one that goes with the model)")
    p.add_argument("--problems", type=int, default=100, help="of each kind")
    p.add_argument("--temperature", type=float, default=0.8)
    p.add_argument("--seed", type=int, default=77, help="of the problems: another one than training's")
    p.add_argument("--csv", type=Path)
    p.add_argument("--svg", type=Path)
    a = p.parse_args()
    asked = [make(kind, a.seed, i, held=True) for kind in KINDS for i in range(a.problems)]
    lm = api.load(a.model, draft=None, threads=1, trained=[a.reward] if a.reward else [])
    bare = api.LM(lm.checkpoint, lm.draft, ())
    rows = list[Row]()
    for name, family, method, options, judged in METHODS:
        rows.append(measure(lm if judged else bare, name, family, method, options, asked, a.temperature))
        line = table([rows[0], rows[-1]], asked)[-1]
        print("  ".join(f"{k} {v}" for k, v in line.items()), file=sys.stderr, flush=True)
    lines = table(rows, asked)
    if a.csv:
        with open(a.csv, "w", newline="", encoding="utf-8") as f:
            out = csv.DictWriter(f, list(lines[0]), lineterminator="\n")
            out.writeheader()
            out.writerows(lines)
    if a.svg:
        a.svg.write_text(svg(rows), "utf-8")


if __name__ == "__main__":
    main()
