"""Draft-and-verify methods on real prompts: tokens a second against plain decoding, beside transformers and llama.cpp.

Every workload × sampling × method; a task is one prompt (or `--batch` of them together), methods take turns on each task, so
that ratios are of pairs that ran side by side. Prompts are those whose SHA-1 mod 10 is 7 or more; state starts empty.
Seconds count decoding only, from the moment when every request of a batch has its first tokens, so a prompt's keys and values
are computed once for all methods that do not read its rows; tokens after EOS do not exist. The split is of these seconds:
passes of the target, passes of draft models, and the rest (Python, verification, sampling).

    python benchmarks/speculation.py --each 2 --methods auto,prompt-lookup --out results/run.jsonl
    python benchmarks/speculation.py --table results/*.jsonl
    python benchmarks/speculation.py --summary results/*.jsonl
    python benchmarks/speculation.py --overview results/*.jsonl --svg overview.svg

Results are appended task by task: an interrupted run goes on where it was. Tables come from the files alone. Each cell also
holds what a replay needs (benchmarks/replay.py): its passes by rows, and the name of the profile that the run used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polydec import api
from polydec.cli.prompts import PromptRow, read_prompt_rows
from polydec.core.trace import EditedEvent
from polydec.core.types import Exactness
from polydec.lab.bench import measure
from polydec.lab.train.data import data_root, held_out, read_rows
from polydec.methods.registry import registry
from polydec.methods.speculative.loop.events import VerifiedEvent
from polydec.request import machine, profile

sys.path.insert(0, str(Path(__file__).parent))
import engines
import heatmap
import replay
import speculation_tables as tables

SAMPLINGS: Mapping[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "greedy, penalty 1.1": {"temperature": 0.0, "repetition_penalty": 1.1},
    "T = 0.7": {"temperature": 0.7},
}
OTHERS = (
    "transformers",
    "transformers assisted",
    "transformers lookup",
    "llama.cpp",
    "llama.cpp lookup",
)


def workloads(root: Path, each: int, seed: int) -> list[PromptRow]:
    """`each` held-out prompts of every kind."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for row in read_prompt_rows(root / "spec_bench" / "question.jsonl"):
        kinds[row.workload].append(row.prompt)
    kinds["gsm8k"] = [r["question"] for r in read_rows(root / "gsm8k/train.jsonl.gz")]
    kinds["mbpp"] = [
        f"{r['text']} Your code should pass: {r['test_list'][0]}"
        for r in read_rows(root / "mbpp/prompt_val_train.jsonl")
    ]
    kinds["grammar"] = [
        "Correct the grammar of this sentence, and write the corrected sentence only: "
        + r["source"]
        for r in read_rows(root / "gec_jfleg/dev.jsonl")
    ]
    kinds["code edit"] = [
        f"Edit this file: {r['instruction']}\n\n```python\n{r['before']}\n```\nWrite the whole new file."
        for r in read_rows(root / "code_edits/edits.jsonl.gz")
        if len(r["before"]) < 2500
    ]
    rows = read_rows(root / "text_dialogues_sgd/dialogues.jsonl.gz")
    kinds["dialogue"] = [_chat(next(rows)["turns"]) for _ in range(200)]
    out = list[PromptRow]()
    for kind in sorted(kinds):
        held = [p for p in kinds[kind] if held_out(p if isinstance(p, str) else p[-1]["content"])]
        out += [
            PromptRow(p, kind)
            for p in random.Random(f"{kind} {seed}").sample(held, min(each, len(held)))
        ]
    return out


def _chat(turns: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A dialogue up to its third user turn, as messages."""
    return [
        {"role": "user" if t["speaker"] == "USER" else "assistant", "content": t["utterance"]}
        for t in turns[:5]
    ]


def batches(rows: Sequence[PromptRow], size: int) -> list[list[PromptRow]]:
    """Tasks of `size` prompts of one workload; what is left of workloads with fewer prompts goes together, as `mixed`."""
    kinds, tasks, left = (
        defaultdict[str, list[PromptRow]](list),
        list[list[PromptRow]](),
        list[PromptRow](),
    )
    for row in rows:
        kinds[row.workload].append(row)
    for mine in kinds.values():
        whole = len(mine) - len(mine) % size
        tasks += [mine[i : i + size] for i in range(0, whole, size)]
        left += [replace(row, workload="mixed") for row in mine[whole:]]
    return tasks + [left[i : i + size] for i in range(0, len(left), size)]


@dataclass(frozen=True)
class Ours:
    """One of our methods on our engine."""

    lm: api.LoadedModel
    method: measure.MethodSetting
    clocks: tuple[replay.Clocked, ...]

    @property
    def label(self) -> str:
        return self.method.label

    def __call__(
        self, rows: Sequence[PromptRow], sampling: Mapping[str, float], tokens: int, seed: int
    ) -> dict[str, Any]:
        for c in self.clocks:
            c.calls.clear()
        for x in (
            self.lm.checkpoint,
            self.lm.draft,
        ):  # the next method begins on the same prompts: they are fed once
            if x is not None:
                x.lm.keep = len(rows)
        tried, got, written = (
            defaultdict[int, int](int),
            defaultdict[int, int](int),
            list[tuple[float, int]](),
        )

        def on(event: Any) -> None:
            if isinstance(event, VerifiedEvent):
                for d in range(len(event.path)):
                    got[d] += 1
            elif isinstance(event, EditedEvent):
                written.append((time.perf_counter(), len(event.pieces)))

        engine = api.Engine(self.lm)
        tickets = [
            engine.submit(
                r.prompt,
                method=self.method.name,
                options=self.method.options,
                raw=r.raw,
                seed=seed,
                sampling=self.lm.sampling_with(**sampling),
                max_tokens=tokens,
                on=on,
            )
            for r in rows
        ]
        answers = engine.run(tickets)
        run = measure.summarise_run(tickets, answers, 0, 0)
        stats = [r.stats for ticket in tickets for r in ticket.results]
        for s in stats:
            for d, n in enumerate(s.tried_at):
                tried[d] += n
        first = max(t.watch.first for t in tickets)
        last, later = max(t for t, _ in written), sum(n for t, n in written if t > first + 5e-4)
        target, *drafts = (c.since(first) for c in self.clocks)
        ran = {m for ticket in tickets for m in ticket.task.usage}
        return {
            "recipe": self.method.name,
            "tokens": later,
            "seconds": last - first,
            "whole_seconds": run.whole_seconds,
            "generated": run.generated,
            "passes": run.passes,
            "positions": run.positions,
            "target_seconds": target.seconds,
            "draft_seconds": sum(d.seconds for d in drafts),
            "target_passes": target.passes,
            "target_rows": target.rows,
            "draft_passes": sum(d.passes for d in drafts),
            "draft_rows": sum(d.rows for d in drafts),
            "target_by_rows": target.by_rows,
            "draft_by_rows": [d.by_rows for d in drafts],
            "unclocked": len(ran - {c.network for c in self.clocks}),
            "drafted": sum(s.drafted for s in stats),
            "accepted": run.accepted,
            "drafts": run.drafts,
            "tried_at": [tried[d] for d in range(8)],
            "accepted_at": [got[d] for d in range(8)],
            "expected": statistics.fmean(
                a.metrics["expected_tokens_per_pass"] or 0.0 for a in answers
            ),
            "distinct": run.distinct,
            "ids": [list(i) for i in run.ids],
        }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", help="directory of the prompts (default: POLYDEC_DATA)")
    p.add_argument("--model", default="zoo:smollm2")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--compute", help="float32, int16 or int8 (default: the machine's)")
    p.add_argument(
        "--trained",
        default="",
        help="comma-separated: what was trained for the model (zoo:smollm2-states)",
    )
    p.add_argument(
        "--methods",
        default="all",
        help="comma-separated, options after colons; plain is always there; "
        "all: what needs nothing trained; lossless: of these what keeps the target's law",
    )
    p.add_argument(
        "--others",
        default="",
        help=f"comma-separated: {', '.join(OTHERS)}; or all (greedy, batch 1 only)",
    )
    p.add_argument(
        "--sampling",
        default="greedy",
        help=f"comma-separated: {'; '.join(SAMPLINGS)}; or all",
        type=str,
    )
    p.add_argument(
        "--each",
        type=int,
        default=1,
        help="prompts of each workload (batches, with --batch; what "
        "is left of workloads with fewer prompts goes together, as `mixed`)",
    )
    p.add_argument("--batch", type=int, default=1, help="requests at once")
    p.add_argument("--only", default="", help="comma-separated workloads")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, default=Path("speculation.jsonl"))
    p.add_argument(
        "--table",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print the tables of these files and stop",
    )
    p.add_argument(
        "--summary",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print as JSON where auto misses its aims, and stop",
    )
    p.add_argument(
        "--overview",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="print methods × settings, and stop",
    )
    p.add_argument("--svg", type=Path, help="with --overview: the same as a picture")
    a = p.parse_args()
    if a.svg and not a.overview:
        p.error("--svg belongs to --overview")
    if a.overview:
        seen = tables.Overview.of(tables.read(a.overview))
        print(seen.markdown())
        if a.svg:
            a.svg.write_text(heatmap.svg(seen), "utf-8")
        return
    if a.table:
        print(tables.markdown(tables.read(a.table)))
        return
    if a.summary:
        print(json.dumps(tables.summary(tables.read(a.summary)), indent=1))
        return
    trained = tuple(filter(None, a.trained.split(",")))
    lm = api.load(a.model, dtype=a.dtype, compute=a.compute, trained=trained)
    lm.costs  # noqa: B018  (measured before anything is timed, where there is no profile)
    found = profile.read_pass_profile(lm)
    clocks = tuple(replay.Clocked(x.lm.network) for x in (lm.checkpoint, lm.draft) if x is not None)
    methods = [measure.MethodSetting("plain", {}), *chosen(a.methods, lm)]
    sides: list[Any] = [Ours(lm, m, clocks) for m in methods if runs(lm, m)]
    if a.others and a.batch == 1:
        names = OTHERS if a.others == "all" else tuple(x.strip() for x in a.others.split(","))
        sides += engines.open_all(names, lm)
    rows = workloads(data_root(a.data), a.each * a.batch, a.seed)
    if a.only:
        rows = [r for r in rows if r.workload in a.only.split(",")]
    tasks = batches(rows, a.batch)
    samplings = (
        list(SAMPLINGS) if a.sampling == "all" else [s.strip() for s in a.sampling.split(";")]
    )
    run(a, lm, found, sides, tasks, samplings)


def runs(lm: api.LoadedModel, method: measure.MethodSetting) -> bool:
    """Whether a method can be had with this model and draft; says why not."""
    try:
        api.Engine(lm).submit("a", method=method.name, options=method.options, max_tokens=1)
    except ValueError as e:
        print(f"{method.label} is left out: {e}", file=sys.stderr)
        return False
    return True


def chosen(text: str, lm: api.LoadedModel) -> list[measure.MethodSetting]:
    """Methods from the command line, each once; `all`: those that need nothing trained; `lossless`: of these those that keep
    the target's law."""
    out = list[measure.MethodSetting]()
    for item in text.split(","):
        if (group := item.strip()) in ("all", "lossless"):
            out += [
                measure.MethodSetting(n, {})
                for n, m in sorted(registry.recipe_modules().items())
                if m.CARD.family != "diffusion"
                if not m.CARD.needs_training
                and (lm.draft or not m.CARD.needs_draft)
                and (group == "all" or m.CARD.guarantee is Exactness.LAW)
            ]
            continue
        name, *pairs = item.strip().split(":")
        registry.get_recipe_module(name)
        out.append(measure.MethodSetting(name, dict(x.split("=", 1) for x in pairs)))
    return [m for m in {m.label: m for m in out}.values() if m.name != "plain"]


def run(
    a: argparse.Namespace,
    lm: api.LoadedModel,
    found: profile.PassProfile | None,
    sides: Sequence[Any],
    tasks: Sequence[Sequence[PromptRow]],
    samplings: Sequence[str],
) -> None:
    """Every side on every task, in turns, appended to the file; what stands there already is passed over."""
    a.out.parent.mkdir(parents=True, exist_ok=True)
    there = [json.loads(line) for line in a.out.read_text().splitlines()] if a.out.exists() else []
    done = {tables.key(c) for c in there if "method" in c}
    where = {
        "machine": machine.describe_machine(lm.network),
        "kernel": lm.checkpoint.kernel,
        "model": lm.name,
        "command": "python benchmarks/speculation.py " + " ".join(sys.argv[1:]),
    }
    todo = list[tuple[Any, Sequence[PromptRow], dict[str, Any]]]()
    for sampling in samplings:
        for repeat in range(a.repeat):
            for at, rows in enumerate(tasks):
                turn = (at + repeat) % len(sides)
                prompt = hashlib.sha1(repr([r.prompt for r in rows]).encode()).hexdigest()[:12]
                for side in (*sides[turn:], *sides[:turn]):
                    cell = {
                        "method": side.label,
                        "workload": rows[0].workload,
                        "sampling": sampling,
                        "batch": a.batch,
                        "max_tokens": a.tokens,
                        "task": at,
                        "prompt": prompt,
                        "repeat": repeat,
                        "seed": a.seed,
                        **where,
                    }
                    if tables.key(cell) not in done and (
                        isinstance(side, Ours) or sampling == "greedy"
                    ):
                        todo.append((side, rows, cell))
    for side in sides[:2] if todo else ():  # lazy initialisation
        side(tasks[0], SAMPLINGS[samplings[0]], 16, 0)
    fed, took = None, defaultdict[str, list[float]](list)
    with open(a.out, "a") as f:
        if found is None:
            print("the profile could not be kept: these cells cannot be replayed", file=sys.stderr)
        else:
            line = replay.to_line(found)
            where["profile"] = line["profile"]
            if not any("tables" in x and x["profile"] == line["profile"] for x in there):
                f.write(json.dumps(line) + "\n")
        for n, (side, rows, cell) in enumerate(todo):
            left = _left(took, (s.label for s, _, _ in todo[n:]))
            print(f"\r{n}/{len(todo)}, {left}{side.label:40}", end="", file=sys.stderr)
            if (
                fed is not rows and len(sides) > 1
            ):  # untimed: prompts are fed and caches grown for all that are timed
                sides[0](rows, SAMPLINGS[cell["sampling"]], a.tokens, a.seed)
            fed, begun = rows, time.perf_counter()
            result = side(rows, SAMPLINGS[cell["sampling"]], a.tokens, a.seed + cell["repeat"])
            took[side.label].append(time.perf_counter() - begun)
            f.write(
                json.dumps(
                    {**cell, **result, "load": round(machine.relative_cpu_load(), 2), **where}
                )
                + "\n"
            )
            f.flush()
    print(file=sys.stderr)


def _left(took: Mapping[str, Sequence[float]], labels: Iterable[str]) -> str:
    """The time that these cells will take, each as its method took so far; one that has not run yet as all did."""
    if not took:
        return ""
    of = {label: statistics.fmean(t) for label, t in took.items()}
    usual = statistics.fmean(of.values())
    seconds = sum(of.get(label, usual) for label in labels)
    return f"{seconds / 60:.0f} min left, " if seconds >= 90 else f"{seconds:.0f} s left, "


if __name__ == "__main__":
    main()
