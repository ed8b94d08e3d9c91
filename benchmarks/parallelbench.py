"""ParallelBench's protocol on a model that `polydec train diffusion` made: every order, block and number of tokens a pass,
thresholds, factors, and remasking beside as many passes without it.

    python benchmarks/parallelbench.py [--model zoo:diffusion] [--each 100] [--csv FILE]

The six short tasks whose answers have six digits, in gaps of that number, so that "tokens a pass" is of the answer alone;
questions as in `polydec bench --suite parallelbench-digits` (held out, and none that an embedded model was trained on but
where a task has no others). At temperature 0, and at 1, which the closed forms are for. "over": of remasking the difference,
in points, to `llada` in one block with as many passes on the same questions, with a 95 % interval from 2,000 resamplings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bootstrap import central_interval, drawn_again
from csv_rows import write_csv

from polydec import Engine, load
from polydec.api import LoadedModel
from polydec.lab.bench import parallelbench
from polydec.lab.bench.intervals import wilson_interval
from polydec.lab.bench.problem import BenchProblem

ORDERS = {"random": "mdlm", "confidence": "llada", "margin": "top-k-margin", "entropy": "dream"}
GAPS = 6
"""Of an answer."""


@dataclass(frozen=True)
class Way:
    """A row. kind: what it is called; passes: that an answer takes, None: as many as it needs."""

    kind: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passes: int | None = None


def ways() -> Iterator[Way]:
    """The published sweep, as far as six gaps let it go."""
    for kind, method in ORDERS.items():
        for size in (1, 2, 3, 6):
            for steps in range(1, size + 1):
                if size % steps == 0 or size == GAPS:
                    how = {"block": size % GAPS, "steps": steps}
                    yield Way(kind, method, how, steps * GAPS // size)
    for bar in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        yield Way("threshold", "fast-dllm", {"block": 0, "threshold": bar})
    for factor in (0.7, 1.0, 1.3, 1.6, 1.9):
        yield Way("factor", "fast-dllm-factor", {"block": 0, "factor": factor})
    for steps in (1, 2, 3):
        for again in (1, 2, 3, 5):
            for count in (1, 2):
                how = {"block": 0, "steps": steps, "again": again, "count": count}
                yield Way("remasking", "remdm", how, steps + again)


@dataclass(frozen=True)
class Answers:
    """Of each problem whether it is right, and written as asked; passes and tokens of all together."""

    right: Sequence[float]
    passes: int
    tokens: int


def answers(lm: LoadedModel, way: Way, asked: Sequence[BenchProblem], heat: float) -> Answers:
    engine, sampling = Engine(lm), lm.sampling_with(temperature=heat)
    tickets = [
        engine.submit(
            p.question,
            method=way.method,
            options=way.options,
            sampling=sampling,
            seed=i,
            max_tokens=p.length,
            infill=p.infill,
        )
        for i, p in enumerate(asked)
    ]
    done, ends = engine.run(tickets), lm.checkpoint.lm.vocab.eos
    return Answers(
        [float(p.right(a.text)) for p, a in zip(asked, done, strict=True)],
        sum(a.metrics["target_passes"] for a in done),
        sum(x not in ends for a in done for x in a.token_ids),
    )


def over(mine: Sequence[float], others: Sequence[float]) -> tuple[str, str, str]:
    """The mean difference in points, with its interval."""
    each = 100 * (np.asarray(mine) - np.asarray(others))
    low, high = central_interval(drawn_again(each).mean(1))
    return f"{each.mean():.1f}", f"{low:.1f}", f"{high:.1f}"


def rows(
    lm: LoadedModel, problems: Sequence[BenchProblem], heat: float
) -> Iterator[dict[str, Any]]:
    """A row for each way and task, and one for all tasks together."""
    alike = dict[int, Answers]()
    tasks = list(dict.fromkeys(p.task for p in problems))
    for way in ways():
        of = [answers(lm, way, [p for p in problems if p.task == t], heat) for t in tasks]
        whole = Answers(
            [x for a in of for x in a.right],
            sum(a.passes for a in of),
            sum(a.tokens for a in of),
        )
        if way.kind == "confidence" and not way.options["block"]:
            alike[way.options["steps"]] = whole
        for task, got in (*zip(tasks, of, strict=True), ("all", whole)):
            n, at = len(got.right), [task in (p.task, "all") for p in problems]
            low, high = wilson_interval(sum(got.right), n)
            other = alike.get(way.passes or 0) if way.kind == "remasking" else None
            beside = [x for x, here in zip(other.right, at, strict=True) if here] if other else []
            sizes = parallelbench.pass_group_sizes(GAPS, way.passes or GAPS)
            fixed = way.kind == "random" and not way.options["block"]
            exact = parallelbench.closed_form_accuracy(task, sizes) if fixed else None
            yield {
                "temperature": f"{heat:g}",
                "kind": way.kind,
                **{k: way.options.get(k, "") for k in ("block", "steps", "threshold", "factor")},
                **{k: way.options.get(k, "") for k in ("again", "count")},
                "task": task,
                "n": n,
                "right": f"{100 * sum(got.right) / n:.1f}",
                "low": f"{100 * low:.1f}",
                "high": f"{100 * high:.1f}",
                "passes": f"{got.passes / n:.2f}",
                "tokens a pass": f"{got.tokens / got.passes:.2f}",
                "closed form": "" if exact is None else f"{100 * exact:.1f}",
                **dict(
                    zip(
                        ("over", "over low", "over high"),
                        over(got.right, beside) if beside else ("", "", ""),
                        strict=True,
                    )
                ),
            }
        print(heat, way.kind, dict(way.options), f"{100 * np.mean(whole.right):.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:diffusion")
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--csv")
    args = parser.parse_args()
    lm = load(args.model, draft=None, threads=1)
    suite = parallelbench.suite_problems("parallelbench-digits", args.each)
    problems = [p for p in suite if p.items == GAPS]
    lines = [row for heat in (0.0, 1.0) for row in rows(lm, problems, heat)]
    if args.csv:
        write_csv(args.csv, lines)


if __name__ == "__main__":
    main()
