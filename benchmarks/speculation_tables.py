"""Tables of benchmarks/speculation.py, from its result files alone: by the clock, and replayed with the measured t(m)."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import replay
from bootstrap import DRAWS, central_interval, drawn_again, speed_over

from polydec.core.types import Exactness
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry

Cell = Mapping[str, Any]
Task = tuple[str, Any, Any]
"""A workload, a prompt (a batch of them) and the most tokens of its answer."""
PerTask = Mapping[Task, tuple[float, float]]
"""Of each task its tokens and what they cost, in any unit of time."""

SLOWEST, BEHIND = 0.97, 0.92
"""What auto aims at: in each category, times plain (the interval's upper end); times the best fixed recipe in hindsight."""


# ---- result files ----


def pair(c: Cell) -> tuple[Any, ...]:
    """What cells have in common that are compared with each other."""
    return c["workload"], c.get("prompt", c["task"]), c["repeat"], c["seed"], c.get("max_tokens")


def group(c: Cell) -> tuple[Any, ...]:
    return c["model"], c["kernel"], c["sampling"], c["batch"]


def key(c: Cell) -> tuple[Any, ...]:
    """What a cell is the result of."""
    return (c["method"], *group(c), *pair(c))


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The cells of all files, each once, with `ms` and the `costs` behind it (None where it cannot be replayed).

    Where a task was run in several files, seconds of the later ones are scaled by what plain took there, so that all ratios
    are of what ran side by side. A task is replayed by one profile for all methods: the one that auto used, else plain.
    """
    profiles, cells, took = dict[str, Any](), dict[Any, dict[str, Any]](), dict[Any, float]()
    for path in paths:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        profiles |= {x["profile"]: replay.from_line(x) for x in lines if "tables" in x}
        here = [dict(x) for x in lines if "method" in x]
        plain = {
            (*group(c), *pair(c)): c["seconds"] / c["tokens"]
            for c in here
            if c["method"] == "plain" and c["tokens"]
        }
        for c in here:
            at = (*group(c), *pair(c))
            if at in took and at in plain:
                c["seconds"] *= took[at] / plain[at]
            cells.setdefault(key(c), c)
        took = plain | took
    used = dict[Any, Any]()
    for c in sorted(cells.values(), key=lambda c: c["method"] == "auto"):
        if c["method"] in ("plain", "auto"):
            used[*group(c), *pair(c)] = profiles.get(c.get("profile", ""))
    for c in cells.values():
        by = used.get((*group(c), *pair(c)))
        c["costs"], c["ms"] = (None, None) if by is None else (by.costs, replay.replayed_ms(c, by))
    return list(cells.values())


# ---- ratios ----


@dataclass(frozen=True)
class Ratio:
    """One speed over another, with its 95 % bootstrap interval over tasks (None where there is only one)."""

    value: float
    interval: tuple[float, float] | None
    tasks: int

    def __str__(self) -> str:
        ends = (
            "one task"
            if self.interval is None
            else f"{self.interval[0]:.2f} to {self.interval[1]:.2f}"
        )
        return f"{self.value:.2f} ({ends})"


def costs(cells: Iterable[Cell], unit: str) -> dict[Task, tuple[float, float]]:
    """Tokens and `unit` ("seconds", "ms") of each task, all its repeats together; tasks that lack it are left out."""
    out, lacks = defaultdict[Task, list[float]](lambda: [0.0, 0.0]), set[Task]()
    for c in cells:
        task = c["workload"], c.get("prompt", (c["task"], c["seed"])), c.get("max_tokens")
        if c.get(unit) is None:
            lacks.add(task)
            continue
        out[task][0] += c["tokens"]
        out[task][1] += c[unit]
    return {t: (n, cost) for t, (n, cost) in out.items() if t not in lacks}


def ratio(ours: PerTask, base: PerTask, draws: int = DRAWS) -> Ratio | None:
    """Tokens a unit of time over the tasks that both have; None where they have none or nothing was written."""
    both = [t for t in ours if t in base]
    rows = np.array([(*ours[t], *base[t]) for t in both], float).reshape(-1, 4)
    value = _quotient(rows.sum(0)[None])
    if not len(value):
        return None
    if len(both) == 1:
        return Ratio(float(value[0]), None, 1)
    interval = central_interval(_quotient(drawn_again(rows, draws).sum(1)))
    return Ratio(float(value[0]), interval, len(both))


def _quotient(sums: np.ndarray) -> np.ndarray:
    return speed_over(sums[(sums > 0).all(1)])


# ---- methods ----


def recipe(c: Cell) -> str:
    return c.get("recipe") or c["method"].split()[0]


def approximate(c: Cell) -> bool:
    """Whether a cell's text need not be the target's; False for other engines, which decode greedily."""
    known = registry.recipe_modules().get(recipe(c))
    guarantee = known.CARD.guarantee if known else Exactness.LAW
    return guarantee is not Exactness.LAW and not (
        guarantee is Exactness.ARGMAX and c["sampling"].startswith("greedy")
    )


def fixed(c: Cell) -> bool:
    """Whether it may be the best recipe in hindsight: ours, lossless, and neither auto nor plain."""
    return (
        recipe(c) in registry.recipe_modules()
        and recipe(c) not in ("auto", "plain")
        and not approximate(c)
    )


@dataclass(frozen=True)
class Category:
    """How auto does on one workload. best: the fixed recipe with the highest replayed speed of those that ran on every task;
    None where there is none. partly: those that did not."""

    name: str
    tasks: int
    plain: float
    clock: Ratio | None
    replayed: Ratio | None
    best: str | None
    best_plain: Ratio | None
    behind: Ratio | None
    behind_clock: Ratio | None
    partly: tuple[str, ...]

    @property
    def slower(self) -> dict[str, bool | None]:
        """Whether auto misses plain, by the clock and replayed; None where no interval tells."""
        return {
            name: None if r is None or r.interval is None else r.interval[1] < SLOWEST
            for name, r in (("clock", self.clock), ("replayed", self.replayed))
        }


def category(
    name: str, of: Mapping[str, Sequence[Cell]], best: Mapping[Task, str] | None = None
) -> Category:
    """of: cells by method, "plain" and "auto" among them. best: of each task the recipe that counts as best there; None: the
    best on all of them."""
    seconds, ms = ({m: costs(cells, unit) for m, cells in of.items()} for unit in ("seconds", "ms"))
    tasks, able = list(seconds["auto"]), [m for m in of if fixed(of[m][0])]
    whole = [m for m in able if all(t in ms[m] for t in tasks)]
    label = "that of each category"
    if best is None:
        speeds = {m: r.value for m in whole if (r := ratio(ms[m], ms["plain"]))}
        label = max(speeds, key=lambda m: speeds[m], default=None)
        best = {} if label is None else dict.fromkeys(tasks, label)
    best_ms, best_seconds = ({t: unit[m][t] for t, m in best.items()} for unit in (ms, seconds))
    written, took = np.sum([*seconds["plain"].values()], 0)
    return Category(
        name,
        len(tasks),
        float(written / max(took, 1e-9)),
        ratio(seconds["auto"], seconds["plain"]),
        ratio(ms["auto"], ms["plain"]),
        label,
        ratio(best_ms, ms["plain"]),
        ratio(ms["auto"], best_ms),
        ratio(seconds["auto"], best_seconds),
        tuple(m for m in able if m not in whole),
    )


def categories(cells: Sequence[Cell]) -> list[Category]:
    """Of one group: its workloads, then all of them with one best recipe, and with each workload's own. Empty without auto."""
    both = {pair(c) for c in cells if c["method"] == "plain"} & {
        pair(c) for c in cells if c["method"] == "auto"
    }
    cells = [c for c in cells if pair(c) in both]
    kinds = by("workload", cells)
    out = [category(k, by("method", mine)) for k, mine in kinds.items()]
    if len(out) < 2:
        return out
    own = {k.name: k.best for k in out}
    out.append(category("all", by("method", cells)))
    if all(own.values()):
        out.append(
            category(
                "all, best of each",
                by("method", cells),
                {t: own[t[0]] or "" for t in costs(cells, "seconds")},
            )
        )
    return out


def beside(cells: Sequence[Cell]) -> dict[str, Ratio]:
    """`auto` over each other engine by the clock, on the tasks that both ran."""
    of = by("method", cells)
    ours = costs(of.get("auto", ()), "seconds")
    return {
        m: r
        for m, mine in of.items()
        if recipe(mine[0]) not in registry.recipe_modules()
        if (r := ratio(ours, costs(mine, "seconds")))
    }


def by(field: str, cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Cells by the value of a field, in order of appearance."""
    out = defaultdict[str, list[Cell]](list)
    for c in cells:
        out[c[field]].append(c)
    return dict(out)


# ---- what is printed ----


def groups(cells: Sequence[Cell]) -> dict[tuple[Any, ...], list[Cell]]:
    """Cells by model, kernel, sampling and batch, without those whose task plain has not run."""
    out = defaultdict[tuple[Any, ...], list[Cell]](list)
    for c in cells:
        out[group(c)].append(c)
    order = list(dict.fromkeys(c["sampling"] for c in cells))
    plain = {g: {pair(c) for c in mine if c["method"] == "plain"} for g, mine in out.items()}
    return {
        g: [c for c in out[g] if pair(c) in plain[g]]
        for g in sorted(out, key=lambda g: (g[0], g[1], g[3], order.index(g[2])))
        if plain[g]
    }


def markdown(cells: Sequence[Cell]) -> str:
    """For each model, sampling and batch: methods × workloads by the clock, what stands behind them, and auto by category."""
    out, last = list[str](), None
    for (model, kernel, sampling, batch), mine in groups(cells).items():
        if (model, kernel) != last:
            same = [c for c in cells if group(c)[:2] == (model, kernel)]
            out += [
                f"{model}, {kernel}; {'; '.join(dict.fromkeys(c['machine'] for c in same))}.",
                "",
                *sorted({f"`{c['command']}`" for c in same}),
                "",
                *(
                    _priced(known)
                    for known in dict.fromkeys(c["costs"] for c in same if c["costs"])
                ),
                "",
            ]
            last = model, kernel
        of = by("method", mine)
        seconds, ms = ({m: costs(of[m], unit) for m in of} for unit in ("seconds", "ms"))
        speed = {m: ratio(seconds[m], seconds["plain"]) for m in of}
        order = sorted(of, key=lambda m: -(speed[m].value if speed[m] else 0.0))
        starred = any(approximate(cs[0]) for cs in of.values())
        together = (
            f", each of {batch} prompts at once (`mixed`: what there is of workloads with fewer)"
            if batch > 1
            else ""
        )
        out += [
            f"### {sampling}, batch {batch}",
            "",
            f"Tasks: {len(seconds['plain'])}{together}. Tokens a second over plain's "
            "on the same tasks, by the clock: over all with the 95 % bootstrap interval over tasks, then of each workload."
            + (" \\*: approximate, the text may not be the target's." if starred else ""),
            "",
        ]
        out += [*_speeds(of, order, speed, seconds), *_behind(of, order, ms)]
        found = categories(mine) if "auto" in of else []
        out += _by_category(found, f"{sampling}, batch {batch}") if found else []
        others = ", ".join(f"{m} {r}" for m, r in beside(mine).items())
        out += [f"`auto` over other engines, clock: {others}.", ""] if others else []
    return "\n".join(out)


@dataclass(frozen=True)
class Overview:
    """All methods in all settings: of each (sampling, batch) its tasks and each method's tokens a second over plain's; where
    it was measured."""

    tasks: Mapping[tuple[str, int], int]
    ratios: Mapping[str, Mapping[tuple[str, int], Ratio]]
    starred: frozenset[str]
    where: str

    @staticmethod
    def of(cells: Sequence[Cell]) -> Overview:
        """Of cells of one model and kernel; methods that are fastest on average come first."""
        tasks, ratios = (
            dict[tuple[str, int], int](),
            defaultdict[str, dict[tuple[str, int], Ratio]](dict),
        )
        for (*_, sampling, batch), mine in groups(cells).items():
            seconds = {m: costs(cs, "seconds") for m, cs in by("method", mine).items()}
            tasks[sampling, batch] = len(seconds["plain"])
            for m in seconds:
                if r := ratio(seconds[m], seconds["plain"]):
                    ratios[m][sampling, batch] = r

        def speed(method: str) -> float:
            return statistics.fmean(
                np.log([max(r.value, 1e-3) for r in ratios[method].values()]).tolist()
            )

        order = sorted(ratios, key=speed, reverse=True)
        return Overview(
            tasks,
            {m: ratios[m] for m in order},
            frozenset(c["method"] for c in cells if approximate(c)),
            "; ".join(dict.fromkeys(f"{c['model']}, {c['kernel']}; {c['machine']}" for c in cells)),
        )

    def markdown(self) -> str:
        """Methods × settings."""
        out = [
            "| method | " + " | ".join(f"{s}, batch {b}" for s, b in self.tasks) + " |",
            "|---|" + "--:|" * len(self.tasks),
        ]
        out += [
            f"| {m}"
            + " \\*" * (m in self.starred)
            + " | "
            + " | ".join(_or(of.get(s)) for s in self.tasks)
            + " |"
            for m, of in self.ratios.items()
        ]
        return "\n".join(out)


def _priced(known: PassCosts) -> str:
    rows = [m for m in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if m <= len(known.rows_ms)]
    return (
        f"Measured beforehand: a pass of {', '.join(map(str, rows))} rows takes "
        f"{', '.join(f'{known.rows_ms[m - 1]:.2f}' for m in rows)} ms with what Python adds"
        + (
            f", and 1,000 tokens of context {', '.join(f'{known.more_ms[m - 1]:.2f}' for m in rows)} ms more"
            if known.more_ms
            else ""
        )
        + (f"; a token of the draft model {known.draft_ms:.2f} ms" if known.draft_ms else "")
        + "."
    )


def _name(of: Mapping[str, Sequence[Cell]], method: str) -> str:
    return method + (" \\*" if approximate(of[method][0]) else "")


def _speeds(
    of: Mapping[str, Sequence[Cell]],
    order: Sequence[str],
    speed: Mapping[str, Ratio | None],
    seconds: Mapping[str, PerTask],
) -> list[str]:
    kinds = list(dict.fromkeys(c["workload"] for cells in of.values() for c in cells))
    out = ["| method | all (95 %) | " + " | ".join(kinds) + " |", "|---|--:|" + "--:|" * len(kinds)]
    for m in order:
        each = [
            ratio({t: x for t, x in seconds[m].items() if t[0] == k}, seconds["plain"])
            for k in kinds
        ]
        out.append(
            f"| {_name(of, m)} | {_or(speed[m])} | "
            + " | ".join(f"{r.value:.2f}" if r else "-" for r in each)
            + " |"
        )
    return [*out, ""]


def _or(r: Ratio | None) -> str:
    return "-" if r is None else str(r)


def _behind(
    of: Mapping[str, Sequence[Cell]], order: Sequence[str], ms: Mapping[str, PerTask]
) -> list[str]:
    plain = {pair(c): c for c in of["plain"]}
    out = [
        "Replayed: the same passes at the cost that was measured beforehand (`polydec tune`), over plain's; then over the "
        "seconds that the clock gave, 1 where the costs explain all of them.",
        "",
        "| method | tokens/s | replayed over plain | replayed over measured | tokens a pass | expected | rows a pass | "
        "acceptance by depth 1, 2, 3, 4 | time in target, draft, rest | ms a pass of target, draft; rest a pass | "
        "equal to plain | distinct 4-grams |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|---|--:|--:|",
    ]
    for m in order:
        cells = of[m]
        told = [c for c in cells if c["ms"] is not None and c["seconds"] > 0]
        same = sum(c["ids"] == plain[pair(c)]["ids"] for c in cells)
        honest = (
            f"{sum(c['ms'] for c in told) / 1e3 / sum(c['seconds'] for c in told):.2f}"
            if told
            else "-"
        )
        speed = ratio(ms[m], ms["plain"])
        out.append(
            f"| {_name(of, m)} | {sum(c['tokens'] for c in cells) / max(sum(c['seconds'] for c in cells), 1e-9):.1f} | "
            + (f"{speed.value:.2f}" if speed else "-")
            + f" | {honest} | {_passes(cells)} | {same}/{len(cells)} | "
            f"{statistics.fmean(c['distinct'] for c in cells):.2f} |"
        )
    return [*out, ""]


def _passes(cells: Sequence[Cell]) -> str:
    def total(name: str) -> float:
        return sum(c.get(name) or 0.0 for c in cells)

    seconds, passes = max(total("seconds"), 1e-9), total("passes")
    if not passes:
        return "- | - | - | - | - | -"
    depth = [
        sum(c["accepted_at"][d] for c in cells) / tried
        if (tried := sum(c["tried_at"][d] for c in cells))
        else None
        for d in range(4)
    ]
    expected = sum(c["expected"] * c["passes"] for c in cells if c.get("expected")) / passes
    spent = [total("target_seconds"), total("draft_seconds")]
    spent.append(max(0.0, seconds - sum(spent)))
    ran = [total("target_passes"), total("draft_passes")]
    return (
        f"{total('generated') / passes:.2f} | "
        + (f"{expected:.2f}" if expected else "-")
        + f" | {total('target_rows') / max(total('target_passes'), 1):.2f} | "
        + ", ".join("-" if x is None else f"{x:.2f}" for x in depth)
        + " | "
        + ", ".join(f"{x / seconds:.0%}" for x in spent)
        + " | "
        + ", ".join(f"{1e3 * x / n:.2f}" if n else "-" for x, n in zip(spent, [*ran, sum(ran)]))
    )


def _by_category(found: Sequence[Category], title: str) -> list[str]:
    out = [
        f"#### `auto` by category: {title}",
        "",
        "Ratios of tokens a second, with 95 % bootstrap intervals over tasks. Clock: as it ran. Replayed: the same passes "
        "at the costs measured beforehand. Best: in hindsight the fastest lossless recipe, neither auto nor plain, of those "
        "that ran on all of these tasks, by replay.",
        "",
        "| category | tasks | plain, tokens/s | auto over plain, clock | auto over plain, replayed | best fixed recipe | "
        "best over plain, replayed | auto over best, replayed | auto over best, clock |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    out += [
        f"| {c.name} | {c.tasks} | {c.plain:.1f} | {_or(c.clock)} | {_or(c.replayed)} | {c.best or '-'} | "
        f"{_or(c.best_plain)} | {_or(c.behind)} | {_or(c.behind_clock)} |"
        for c in found
    ]
    partly = sorted({m for c in found for m in c.partly})
    return [
        *out,
        "",
        *(
            [
                f"Not replayed on every task of a category, so never its best: {', '.join(partly)}.",
                "",
            ]
            if partly
            else []
        ),
    ]


def summary(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Of each model, sampling and batch where auto ran: its categories as numbers, and `misses`: those where the interval
    ends below SLOWEST times plain, or auto is below BEHIND times the best fixed recipe (replayed)."""

    def numbers(r: Ratio | None) -> dict[str, Any] | None:
        return (
            None
            if r is None
            else {
                "value": round(r.value, 4),
                "interval": r.interval and [round(x, 4) for x in r.interval],
            }
        )

    out = list[dict[str, Any]]()
    for (model, kernel, sampling, batch), mine in groups(cells).items():
        if not any(c["method"] == "auto" for c in mine):
            continue
        rows = [
            {
                "category": c.name,
                "tasks": c.tasks,
                "plain_tokens_per_second": round(c.plain, 2),
                "auto_over_plain_clock": numbers(c.clock),
                "auto_over_plain_replayed": numbers(c.replayed),
                "best": c.best,
                "best_over_plain_replayed": numbers(c.best_plain),
                "auto_over_best_replayed": numbers(c.behind),
                "auto_over_best_clock": numbers(c.behind_clock),
                "slower_than_plain_clock": c.slower["clock"],
                "slower_than_plain_replayed": c.slower["replayed"],
                "behind_best_replayed": None if c.behind is None else c.behind.value < BEHIND,
            }
            for c in categories(mine)
        ]
        flags = ("slower_than_plain_clock", "slower_than_plain_replayed", "behind_best_replayed")
        out.append(
            {
                "model": model,
                "kernel": kernel,
                "sampling": sampling,
                "batch": batch,
                "categories": rows,
                "auto_over_other_engines_clock": {m: numbers(r) for m, r in beside(mine).items()},
                "misses": {f: [r["category"] for r in rows if r[f]] for f in flags},
            }
        )
    return out
