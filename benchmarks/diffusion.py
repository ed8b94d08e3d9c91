"""Unmasking rules on the tasks of zoo:diffusion: passes saved, accuracy lost, with 95 % intervals; a table and a plot.

    python benchmarks/diffusion.py [--each 60] [--model zoo:diffusion] [--out docs/diffusion-policies]

The baseline writes one token a pass, the surest first. Instances are fresh: of other seeds than the training's, and none of its
questions (but for `fill`, which has few). `lost` is the difference to the baseline on the same instances, in points; its
interval comes from 2,000 resamplings of them. Passes and positions are counted, never timed.
"""
from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from polydec import Engine, load
from polydec.train.tasks import SHIPPED, TASKS, Task, make, right

ALL = {"block": 0}


@dataclass(frozen=True)
class Policy:
    """A row of the table. model: another one than the benchmark's, with `with_` beside it."""
    label: str
    method: str
    options: Mapping[str, Any]
    model: str | None = None
    with_: tuple[str, ...] = ()
    draft: str | None = None


BASE = Policy("one a pass", "llada", ALL)
FREE = (
    BASE, Policy("all in one pass", "llada", {**ALL, "steps": 1}),
    *(Policy(f"{k} passes", "llada", {**ALL, "steps": k}) for k in (2, 4)),
    *(Policy(f"threshold {t}", "fast-dllm", {**ALL, "threshold": t}) for t in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)),
    *(Policy(f"factor {f}", "fast-dllm-factor", {**ALL, "factor": f}) for f in (0.5, 1.0, 1.5)),
    *(Policy(f"credit {t}", "creditdecoding", {**ALL, "threshold": t}) for t in (0.9, 0.95)),
    *(Policy(f"local {t}", "localleap", {**ALL, "threshold": t}) for t in (0.9, 0.95)),
    Policy("ccd", "ccd", ALL), Policy("ccd, agreement", "ccd", {**ALL, "agree": True}),
    *(Policy(f"prophet {b}", "prophet", {**ALL, "early": a, "middle": b, "late": c})
      for a, b, c in ((7.5, 5.0, 2.5), (12.0, 9.0, 6.0))),
    Policy("entropy 0.45", "dparallel", ALL),
    *(Policy(f"freedave {d}", "freedave", {**ALL, "drafts": d}) for d in (2, 4)),
    Policy("dkv-cache", "dkv-cache", ALL), Policy("dkv-cache, threshold 0.9", "dkv-cache", {**ALL, "threshold": 0.9}),
    Policy("dkv-cache-greedy", "dkv-cache-greedy", ALL), Policy("left to right", "left-to-right", ALL),
)


def fresh(name: str, count: int, seen: frozenset[str], seed: int) -> list[Task]:
    """Instances that training did not have; of a task with few questions any."""
    few = len({make(name, -1, i).question for i in range(400)}) < 350
    tasks = (make(name, seed, i, held=True) for i in range(100 * count))
    return [t for t, _ in zip((t for t in tasks if few or t.question not in seen), range(count))]


def trained_on(runs: Sequence[Sequence[Any]]) -> frozenset[str]:
    """The questions of training runs: (seed, tasks of it in turn, how many)."""
    return frozenset(make(names[i % len(names)], seed, i).question for seed, names, count in runs for i in range(count))


def answers(policy: Policy, model: str, tasks: Sequence[tuple[str, Task]]) -> Iterator[tuple[bool, int, int]]:
    """Of each task whether the answer was right, the passes and the positions that it took."""
    lm = load(policy.model or model, draft=policy.draft, trained=policy.with_, threads=1)
    engine = Engine(lm)                           # all at once: no answer depends on its company
    asked = [engine.submit(t.question, method=policy.method, options=policy.options, max_tokens=13) for _, t in tasks]
    for (name, task), done in zip(tasks, engine.run(asked), strict=True):
        yield right(name, task.question, done.text), done.metrics["target_passes"], done.metrics["positions_fed"]


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, p = 1.96, k / n
    mid, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (mid - half) / (1 + z * z / n), (mid + half) / (1 + z * z / n)


def lost(base: Sequence[bool], other: Sequence[bool]) -> tuple[float, float, float]:
    """Points of accuracy lost, and their 95 % interval, over pairs that are drawn again."""
    differences, r, n = [a - b for a, b in zip(base, other, strict=True)], random.Random(0), len(base)
    means = sorted(sum(r.choices(differences, k=n)) / n for _ in range(2000))
    return 100 * sum(differences) / n, 100 * means[50], 100 * means[1949]


def table(model: str, each: int, seed: int, seen: frozenset[str], policies: Sequence[Policy]) -> Iterator[dict[str, Any]]:
    """A row for each policy and task, and one for all tasks together."""
    tasks = [(name, t) for name in SHIPPED for t in fresh(name, each, seen, seed)]
    base = None
    for policy in policies:
        got = list(answers(policy, model, tasks))
        base = base or got
        for part in (*SHIPPED, "all"):
            at = [i for i, (name, _) in enumerate(tasks) if part in (name, "all")]
            ok = [got[i][0] for i in at]
            passes, before = sum(got[i][1] for i in at), sum(base[i][1] for i in at)
            low, high = wilson(sum(ok), len(ok))
            points = lost([base[i][0] for i in at], ok)
            yield {"policy": policy.label, "task": part, "n": len(ok), "accuracy": f"{100 * sum(ok) / len(ok):.1f}",
                   "low": f"{100 * low:.1f}", "high": f"{100 * high:.1f}", "passes": f"{passes / len(at):.2f}",
                   "passes_saved": f"{before / passes:.2f}", "positions": f"{sum(got[i][2] for i in at) / len(at):.1f}",
                   "lost": f"{points[0]:.1f}", "lost_low": f"{points[1]:.1f}", "lost_high": f"{points[2]:.1f}"}


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy against passes saved, all tasks together, as an SVG."""
    points = [(float(r["passes_saved"]), float(r["accuracy"]), float(r["low"]), float(r["high"]), r["policy"])
              for r in rows if r["task"] == "all"]
    most = max(p[0] for p in points)
    wide, high, left, top = 900, 460, 60, 20
    x = lambda v: left + (wide - left - 190) * (v - 0.8) / (most - 0.8)        # noqa: E731
    y = lambda v: top + (high - top - 50) * (1 - v / 100)                       # noqa: E731
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11">',
           f'<rect width="{wide}" height="{high}" fill="white"/>']
    for v in range(0, 101, 20):
        out.append(f'<path d="M{left} {y(v):.1f}H{wide - 190}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v}</text>')
    for v in range(1, int(most) + 1):
        out.append(f'<text x="{x(v):.1f}" y="{high - 30}" text-anchor="middle">{v}</text>')
    out.append(f'<text x="{(left + wide - 190) / 2}" y="{high - 8}" text-anchor="middle">passes saved (times)</text>'
               f'<text x="14" y="{high / 2}" transform="rotate(-90 14 {high / 2})" text-anchor="middle">'
               'right answers (%)</text>')
    for i, (saved, share, low, upper, label) in enumerate(points):
        hue = 360 * i // len(points)
        out.append(f'<path d="M{x(saved):.1f} {y(low):.1f}V{y(upper):.1f}" stroke="hsl({hue} 60% 45%)" opacity=".5"/>'
                   f'<circle cx="{x(saved):.1f}" cy="{y(share):.1f}" r="4" fill="hsl({hue} 60% 45%)"/>'
                   f'<circle cx="{wide - 178}" cy="{30 + 14 * i}" r="4" fill="hsl({hue} 60% 45%)"/>'
                   f'<text x="{wide - 168}" y="{34 + 14 * i}">{label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="zoo:diffusion")
    p.add_argument("--each", type=int, default=60, help="instances of each task")
    p.add_argument("--seed", type=int, default=77)
    p.add_argument("--seen", action="append", default=[], help="SEED:COUNT[:TASKS] of a training run (repeatable)")
    p.add_argument("--filter", help="directory of a filter: learn2pd, with and without end-of-text prediction")
    p.add_argument("--surer", action="append", default=[], help="LABEL=DIRECTORY of what train dparallel made (repeatable)")
    p.add_argument("--out", type=Path, default=Path("docs/diffusion-policies"))
    a = p.parse_args()
    policies = list(FREE)
    if a.filter:
        for label, ending in (("learn2pd", True), ("learn2pd, no end predicted", False)):
            policies.append(Policy(label, "learn2pd", {"ending": ending}, with_=(a.filter,)))
    for one in a.surer:
        label, _, where = one.partition("=")
        policies += [Policy(f"{label}, one a pass", "llada", ALL, model=where), Policy(label, "dparallel", ALL, model=where)]
    runs = [(int(s), tuple(names[0].split(",") if names else TASKS), int(n)) for s, n, *names in (x.split(":") for x in a.seen)]
    rows = list(table(a.model, a.each, a.seed, trained_on(runs), policies))
    with a.out.with_suffix(".csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    a.out.with_suffix(".svg").write_text(plot(rows), "utf-8")
    for r in rows:
        if r["task"] == "all":
            print(f"{r['policy']:28} {r['accuracy']:>6} [{r['low']}, {r['high']}]  {r['passes']:>6} passes, "
                  f"{r['passes_saved']} x, "
                  f"{r['lost']} points lost [{r['lost_low']}, {r['lost_high']}]")


if __name__ == "__main__":
    main()
