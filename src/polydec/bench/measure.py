"""Methods × prompts, interleaved, on one loaded model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polydec.api import LM, Completion, Engine, Prompt, Ticket
from polydec.base.errors import RequestError
from polydec.families.ar.stats import DraftStats
from polydec.methods import registry
from polydec.shapers.sampling import Sampling


@dataclass(frozen=True)
class Method:
    name: str
    options: Mapping[str, str]

    @property
    def label(self) -> str:
        return self.name + "".join(f" {k}={v}" for k, v in self.options.items())


def spelt(item: str) -> Method:
    """`name:option=value:option=value`. Raises RequestError for a method that is unknown and for options in another form."""
    name, *pairs = item.strip().split(":")
    registry.get(name)
    options: dict[str, str] = {}
    for pair in pairs:
        key, eq, value = pair.partition("=")
        if not eq:
            raise RequestError(
                f"methods holds {item!r}: options are written as {name}:option=value"
            )
        options[key] = value
    return Method(name, options)


@dataclass(frozen=True)
class Task:
    """Requests that run together (one where the batch is 1)."""

    workload: str
    prompts: tuple[Prompt, ...]
    raw: bool = False


@dataclass(frozen=True)
class Run:
    """One task by one method. tokens and seconds count decoding only: without the first pass of each request."""

    task: int
    repeat: int
    tokens: int
    seconds: float
    whole_seconds: float
    generated: int
    passes: int
    positions: int
    drafts: int
    accepted: int
    ids: tuple[tuple[int, ...], ...]
    distinct: float


def distinct_4grams(ids: Sequence[int]) -> float:
    """The share of different ones among the 4-grams of a text: low where it loops. 1 for shorter texts."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def run_task(lm: LM, method: Method, task: Task, at: int, repeat: int, **request: Any) -> Run:
    engine = Engine(lm)
    tickets = [
        engine.submit(p, method=method.name, options=method.options, raw=task.raw, **request)
        for p in task.prompts
    ]
    return summary(tickets, engine.run(tickets), at, repeat)


def summary(tickets: Sequence[Ticket], answers: Sequence[Completion], at: int, repeat: int) -> Run:
    watches = [t.watch for t in tickets]
    stats: list[Any] = [r.stats for ticket in tickets for r in ticket.results]
    begun, ended = min(w.opened for w in watches), max(w.last for w in watches)
    ids = tuple(c.token_ids for a in answers for c in a.choices)
    generated = sum(map(len, ids))
    first = min(w.first or w.last for w in watches)
    drafted = [s for s in stats if isinstance(s, DraftStats)]
    return Run(
        at,
        repeat,
        generated - sum(s.first for s in stats),
        ended - first,
        ended - begun,
        generated,
        sum(s.passes for s in stats),
        sum(m["positions_fed"] for a in answers for m in a.metrics["models"]),
        sum(s.drafts for s in drafted),
        sum(s.accepted for s in drafted),
        ids,
        statistics.fmean(map(distinct_4grams, ids)),
    )


def measure(
    lm: LM,
    methods: Sequence[Method],
    tasks: Sequence[Task],
    *,
    sampling: Sampling,
    max_tokens: int,
    repeats: int,
    seed: int = 0,
    tick: Callable[[str], None] = lambda label: None,
    into: dict[str, list[Run]] | None = None,
) -> dict[str, list[Run]]:
    """Every method on every task, `repeats` times, methods side by side in turn; their order moves on by one each time.

    The first task is run once by the first method before anything is counted (caches, lazy initialisation). into: what is
    filled run by run and returned, so that whoever has it keeps what was measured before a failure.
    """
    run_task(
        lm, methods[0], tasks[0], 0, 0, sampling=sampling, max_tokens=min(16, max_tokens), seed=seed
    )
    runs = {} if into is None else into
    runs.update({m.label: [] for m in methods})
    for repeat in range(repeats):
        for at, task in enumerate(tasks):
            turn = (repeat + at) % len(methods)
            for m in [*methods[turn:], *methods[:turn]]:
                tick(f"{m.label}: {task.workload}")
                runs[m.label].append(
                    run_task(
                        lm, m, task, at, repeat, sampling=sampling, max_tokens=max_tokens, seed=seed
                    )
                )
    return runs


def speed(runs: Sequence[Run]) -> float:
    """Tokens per second over all tasks, each counted with the median of its seconds."""
    tokens = seconds = 0.0
    for at in {r.task for r in runs}:
        mine = [r for r in runs if r.task == at]
        tokens += statistics.median(r.tokens for r in mine)
        seconds += statistics.median(r.seconds for r in mine)
    return tokens / seconds if seconds > 0 else 0.0


def interval(ours: Sequence[Run], plain: Sequence[Run], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of speeds, over pairs (task, repeat) that ran side by side."""
    base = {(r.task, r.repeat): r for r in plain}
    rows = np.array(
        [
            (r.tokens, r.seconds, base[r.task, r.repeat].tokens, base[r.task, r.repeat].seconds)
            for r in ours
            if (r.task, r.repeat) in base
        ]
    )
    if not len(rows):
        return (float("nan"), float("nan"))
    at = np.random.default_rng(0).integers(0, len(rows), (draws, len(rows)))
    t1, s1, t0, s0 = np.moveaxis(rows[at].sum(1), -1, 0)
    ok = (t0 > 0) & (s1 > 0) & (s0 > 0)
    if not ok.any():
        return (float("nan"), float("nan"))
    low, high = np.quantile((t1[ok] / s1[ok]) / (t0[ok] / s0[ok]), (0.025, 0.975))
    return float(low), float(high)


def table(
    lm: LM, runs: Mapping[str, Sequence[Run]], tasks: Sequence[Task], plain: str = "plain"
) -> list[dict[str, Any]]:
    """One row per method and workload, and per method over all ("all") where there are several."""
    workloads = list(dict.fromkeys(t.workload for t in tasks))
    groups = [
        *((w, {i for i, t in enumerate(tasks) if t.workload == w}) for w in workloads),
        *([("all", set(range(len(tasks))))] if len(workloads) > 1 else []),
    ]
    rows: list[dict[str, Any]] = []
    for label, mine in runs.items():
        for workload, among in groups:
            ours, base = (
                [r for r in mine if r.task in among],
                [r for r in runs.get(plain, ()) if r.task in among],
            )
            if not ours:  # a run that ended early has not come to it
                continue
            same = {(r.task, r.repeat): r.ids for r in base}
            passes, drafts = sum(r.passes for r in ours), sum(r.drafts for r in ours)
            rows.append(
                {
                    "model": lm.name,
                    "method": label,
                    "workload": workload,
                    "batch": max(len(tasks[i].prompts) for i in among),
                    "tokens_per_second": speed(ours),
                    "ratio_to_plain": speed(ours) / speed(base) if base and speed(base) else None,
                    "ratio_interval": list(interval(ours, base)) if base else None,
                    "tokens_per_pass": sum(r.generated for r in ours) / passes if passes else None,
                    "positions_fed": sum(r.positions for r in ours if r.repeat == 0),
                    "mean_acceptance_length": 1 + sum(r.accepted for r in ours) / drafts
                    if drafts
                    else 1.0,
                    "identical": all(r.ids == same.get((r.task, r.repeat), r.ids) for r in ours)
                    if base
                    else None,
                    "whole_tokens_per_second": sum(r.generated for r in ours)
                    / sum(r.whole_seconds for r in ours),
                    "distinct_4grams": statistics.fmean(r.distinct for r in ours),
                }
            )
    return rows
