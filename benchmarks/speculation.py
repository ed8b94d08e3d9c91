"""Draft-and-verify methods on real prompts: tokens a second against plain decoding, beside transformers and llama.cpp.

Every workload × sampling × method; a task is one prompt (or `--batch` of them together), methods take turns on each task, so
that ratios are of pairs that ran side by side. Prompts are those whose SHA-1 mod 10 is 7 or more; state starts empty.
Seconds count decoding only, from the moment when every request of a batch has its first tokens; tokens after EOS do not
exist. The split is of these seconds: passes of the target, passes of draft models, and the rest (Python, verification,
sampling).

    python benchmarks/speculation.py --each 2 --methods auto,prompt-lookup --out results/run.jsonl
    python benchmarks/speculation.py --table results/run.jsonl

Results are appended task by task: an interrupted run goes on where it was. Tables come from the file alone.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polydec import api, registry
from polydec.bench import machine, measure, profile
from polydec.cli.prompts import Row, read
from polydec.core.trace import Edited, Verified
from polydec.train.data import data_root, held_out, read_rows

sys.path.insert(0, str(Path(__file__).parent))
import engines

SAMPLINGS: Mapping[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0}, "greedy, penalty 1.1": {"temperature": 0.0, "repetition_penalty": 1.1},
    "T = 0.7": {"temperature": 0.7}}
OTHERS = ("transformers", "transformers assisted", "transformers lookup", "llama.cpp", "llama.cpp lookup")


def workloads(root: Path, each: int, seed: int) -> list[Row]:
    """`each` held-out prompts of every kind."""
    kinds: dict[str, list[Any]] = defaultdict(list)
    for row in read(root / "spec_bench" / "question.jsonl"):
        kinds[row.workload].append(row.prompt)
    kinds["gsm8k"] = [r["question"] for r in read_rows(root / "gsm8k/train.jsonl.gz")]
    kinds["mbpp"] = [f"{r['text']} Your code should pass: {r['test_list'][0]}"
                     for r in read_rows(root / "mbpp/prompt_val_train.jsonl")]
    kinds["grammar"] = ["Correct the grammar of this sentence, and write the corrected sentence only: " + r["source"]
                        for r in read_rows(root / "gec_jfleg/dev.jsonl")]
    kinds["code edit"] = [f"Edit this file: {r['instruction']}\n\n```python\n{r['before']}\n```\nWrite the whole new file."
                          for r in read_rows(root / "code_edits/edits.jsonl.gz") if len(r["before"]) < 2500]
    rows = read_rows(root / "text_dialogues_sgd/dialogues.jsonl.gz")
    kinds["dialogue"] = [_chat(next(rows)["turns"]) for _ in range(200)]
    out = list[Row]()
    for kind in sorted(kinds):
        held = [p for p in kinds[kind] if held_out(p if isinstance(p, str) else p[-1]["content"])]
        out += [Row(p, kind) for p in random.Random(f"{kind} {seed}").sample(held, min(each, len(held)))]
    return out


def _chat(turns: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """A dialogue up to its third user turn, as messages."""
    return [{"role": "user" if t["speaker"] == "USER" else "assistant", "content": t["utterance"]} for t in turns[:5]]


class Clocked:
    """Notes when each pass of a network ran and how long it took."""
    def __init__(self, network: Any) -> None:
        self.passes, forward = list[tuple[float, float, int]](), network.forward

        def timed(queries: Any) -> Any:
            start = time.perf_counter()
            answers = forward(queries)
            self.passes.append((start, time.perf_counter() - start, sum(len(q) for q in queries)))
            return answers
        network.forward = timed

    def since(self, moment: float) -> tuple[float, int, int]:
        """Seconds, passes and rows since then."""
        mine = [p for p in self.passes if p[0] >= moment]
        return sum(p[1] for p in mine), len(mine), sum(p[2] for p in mine)


@dataclass(frozen=True)
class Ours:
    """One of our methods on our engine."""
    lm: api.LM
    method: measure.Method
    clocks: tuple[Clocked, ...]

    @property
    def label(self) -> str:
        return self.method.label

    def __call__(self, rows: Sequence[Row], sampling: Mapping[str, float], tokens: int, seed: int) -> dict[str, Any]:
        for c in self.clocks:
            c.passes.clear()
        tried, got, written = defaultdict[int, int](int), defaultdict[int, int](int), list[tuple[float, int]]()

        def on(event: Any) -> None:
            if isinstance(event, Verified):
                for d in range(len(event.path)):
                    got[d] += 1
            elif isinstance(event, Edited):
                written.append((time.perf_counter(), len(event.pieces)))
        engine = api.Engine(self.lm)
        tickets = [engine.submit(r.prompt, method=self.method.name, options=self.method.options, raw=r.raw, seed=seed,
                                 sampling=self.lm.sampling(**sampling), max_tokens=tokens, on=on) for r in rows]
        answers = engine.run(tickets)
        run = measure.summary(tickets, answers, 0, 0)
        stats = [t.result.stats for ticket in tickets for t in ticket.tasks]
        for s in stats:
            for d, n in enumerate(s.tried_at):
                tried[d] += n
        first = max(w.first for t in tickets for w in t.watches)
        last, later = max(t for t, _ in written), sum(n for t, n in written if t > first + 5e-4)
        target, passes, fed = self.clocks[0].since(first)
        draft, asked, draft_fed = self.clocks[1].since(first) if len(self.clocks) > 1 else (0.0, 0, 0)
        return {"tokens": later, "seconds": last - first, "whole_seconds": run.whole_seconds, "generated": run.generated,
                "passes": run.passes, "positions": run.positions, "target_seconds": target, "draft_seconds": draft,
                "target_passes": passes, "target_rows": fed, "draft_passes": asked, "draft_rows": draft_fed,
                "drafted": sum(s.drafted for s in stats), "accepted": run.accepted, "drafts": run.drafts,
                "tried_at": [tried[d] for d in range(8)], "accepted_at": [got[d] for d in range(8)],
                "expected": statistics.fmean(a.metrics["expected_tokens_per_pass"] or 0.0 for a in answers),
                "distinct": run.distinct, "ids": [list(i) for i in run.ids]}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", help="directory of the prompts (default: POLYDEC_DATA, else ../shared/data)")
    p.add_argument("--model", default="zoo:smollm2")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--methods", default="all", help="comma-separated, options after colons; plain is always there")
    p.add_argument("--others", default="", help=f"comma-separated: {', '.join(OTHERS)}; or all (greedy, batch 1 only)")
    p.add_argument("--sampling", default="greedy", help=f"comma-separated: {'; '.join(SAMPLINGS)}; or all", type=str)
    p.add_argument("--each", type=int, default=1, help="prompts of each workload (batches, with --batch)")
    p.add_argument("--batch", type=int, default=1, help="requests at once")
    p.add_argument("--only", default="", help="comma-separated workloads")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, default=Path("speculation.jsonl"))
    p.add_argument("--table", type=Path, help="print the tables of this file and stop")
    a = p.parse_args()
    if a.table:
        print(table([json.loads(line) for line in a.table.read_text().splitlines()]))
        return
    lm = api.load(a.model, dtype=a.dtype)
    lm.costs  # noqa: B018  (measured before anything is timed, where there is no profile)
    clocks = tuple(Clocked(x.lm.network) for x in (lm.checkpoint, lm.draft) if x is not None)
    methods = [measure.Method("plain", {}), *chosen(a.methods, lm)]
    sides: list[Any] = [Ours(lm, m, clocks) for m in methods if runs(lm, m)]
    if a.others and a.batch == 1:
        names = OTHERS if a.others == "all" else tuple(x.strip() for x in a.others.split(","))
        sides += engines.open_all(names, lm)
    rows = workloads(data_root(a.data), a.each * a.batch, a.seed)
    if a.only:
        rows = [r for r in rows if r.workload in a.only.split(",")]
    tasks = [rows[i:i + a.batch] for i in range(0, len(rows), a.batch)]
    samplings = list(SAMPLINGS) if a.sampling == "all" else [s.strip() for s in a.sampling.split(";")]
    run(a, lm, sides, tasks, samplings)


def runs(lm: api.LM, method: measure.Method) -> bool:
    """Whether a method can be had with this model and draft; says why not."""
    try:
        api.Engine(lm).submit("a", method=method.name, options=method.options, max_tokens=1)
    except ValueError as e:
        print(f"{method.label} is left out: {e}", file=sys.stderr)
        return False
    return True


def chosen(text: str, lm: api.LM) -> list[measure.Method]:
    """Methods from the command line; `all`: those that need nothing trained."""
    if text == "all":
        return [measure.Method(n, {}) for n, m in sorted(registry.recipes().items())
                if n != "plain" and not m.CARD.needs_training and (lm.draft or "draft" not in m.CARD.needs)]
    out = list[measure.Method]()
    for item in text.split(","):
        name, *pairs = item.strip().split(":")
        registry.get(name)
        out.append(measure.Method(name, dict(x.split("=", 1) for x in pairs)))
    return [m for m in out if m.name != "plain"]


def run(a: argparse.Namespace, lm: api.LM, sides: Sequence[Any], tasks: Sequence[Sequence[Row]],
        samplings: Sequence[str]) -> None:
    """Every side on every task, in turns, appended to the file; what stands there already is passed over."""
    a.out.parent.mkdir(parents=True, exist_ok=True)
    done = set[tuple[Any, ...]]()
    if a.out.exists():
        done = {_key(json.loads(line)) for line in a.out.read_text().splitlines()}
    where = {"machine": machine.describe(lm.network), "kernel": lm.checkpoint.kernel, "model": lm.name,
             "command": "python benchmarks/speculation.py " + " ".join(sys.argv[1:])}
    kept = profile.read(lm)
    where["t_m"] = kept.rows if kept else None
    for side in sides[:2]:                        # caches and lazy initialisation
        side(tasks[0], SAMPLINGS[samplings[0]], 16, 0)
    begun, n = time.perf_counter(), 0
    total = len(samplings) * a.repeat * len(tasks) * len(sides)
    with open(a.out, "a") as f:
        for sampling in samplings:
            for repeat in range(a.repeat):
                for at, rows in enumerate(tasks):
                    turn = (at + repeat) % len(sides)
                    for side in (*sides[turn:], *sides[:turn]):
                        n += 1
                        cell = {"method": side.label, "workload": rows[0].workload, "sampling": sampling, "batch": a.batch,
                                "task": at, "repeat": repeat, "seed": a.seed}
                        if _key(cell) in done or (not isinstance(side, Ours) and sampling != "greedy"):
                            continue
                        print(f"\r{n}/{total} {time.perf_counter() - begun:.0f} s {side.label:40}", end="", file=sys.stderr)
                        found = side(rows, SAMPLINGS[sampling], a.tokens, a.seed + repeat)
                        f.write(json.dumps({**cell, **found, "load": round(machine.busy(), 2), **where}) + "\n")
                        f.flush()
    print(file=sys.stderr)


def _key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[k] for k in ("method", "workload", "sampling", "batch", "task", "repeat", "seed"))


# ---- tables ----

def table(cells: Sequence[dict[str, Any]]) -> str:
    """Markdown: for each sampling and batch, methods × workloads (ratio to plain), then what stands behind it."""
    out = [f"{cells[0]['model']}, {cells[0]['kernel']}; {cells[0]['machine']}.", "",
           *sorted({f"`{c['command']}`" for c in cells}), ""]
    groups = {(c["sampling"], c["batch"]) for c in cells}
    for sampling, batch in sorted(groups, key=lambda k: (k[1], list(SAMPLINGS).index(k[0]))):
        mine = [c for c in cells if (c["sampling"], c["batch"]) == (sampling, batch)]
        plain = {_pair(c): c for c in mine if c["method"] == "plain"}
        mine = [c for c in mine if _pair(c) in plain]
        kinds = list(dict.fromkeys(c["workload"] for c in mine))
        tasks = len(plain)
        out += [f"### {sampling}, batch {batch}", "",
                f"{tasks} tasks. Ratio of tokens a second to plain, 95 % interval over tasks.", "",
                "| method | all | 95 % | " + " | ".join(kinds) + " |", "|---|--:|--:|" + "--:|" * len(kinds)]
        of = {m: [c for c in mine if c["method"] == m] for m in dict.fromkeys(c["method"] for c in mine)}
        speed = {m: _ratio(of[m], plain) for m in of}
        order = sorted(of, key=lambda m: -speed[m])
        for m in order:
            low, high = interval(of[m], plain)
            each = [_ratio([c for c in of[m] if c["workload"] == k], plain) for k in kinds]
            out.append(f"| {m} | {speed[m]:.2f} | {low:.2f}-{high:.2f} | " + " | ".join(f"{x:.2f}" for x in each) + " |")
        out += ["", "| method | tokens/s | tokens a pass | expected | rows a pass | acceptance by depth 1, 2, 3, 4 | "
                "target, draft, rest | equal to plain | distinct 4-grams |", "|---|--:|--:|--:|--:|---|---|--:|--:|"]
        out += [_behind(m, of[m], plain) for m in order] + [""]
    return "\n".join(out)


def _pair(c: Mapping[str, Any]) -> tuple[Any, ...]:
    return c["workload"], c["task"], c["repeat"], c["seed"]


def _ratio(cells: Sequence[Mapping[str, Any]], plain: Mapping[Any, Mapping[str, Any]]) -> float:
    ours = sum(c["tokens"] for c in cells) / max(sum(c["seconds"] for c in cells), 1e-9)
    base = [plain[_pair(c)] for c in cells]
    theirs = sum(c["tokens"] for c in base) / max(sum(c["seconds"] for c in base), 1e-9)
    return ours / theirs if theirs else float("nan")


def interval(cells: Sequence[Mapping[str, Any]], plain: Mapping[Any, Mapping[str, Any]],
             draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio, over tasks."""
    rows = np.array([(c["tokens"], c["seconds"], plain[_pair(c)]["tokens"], plain[_pair(c)]["seconds"]) for c in cells], float)
    at = np.random.default_rng(0).integers(0, len(rows), (draws, len(rows)))
    t1, s1, t0, s0 = np.moveaxis(rows[at].sum(1), -1, 0)
    ok = (t0 > 0) & (s1 > 0)
    if not ok.any():
        return float("nan"), float("nan")
    low, high = np.quantile(t1[ok] / s1[ok] * s0[ok] / t0[ok], (0.025, 0.975))
    return float(low), float(high)


def _behind(method: str, cells: Sequence[Mapping[str, Any]], plain: Mapping[Any, Mapping[str, Any]]) -> str:
    def total(name: str) -> float:
        return sum(c.get(name) or 0.0 for c in cells)
    seconds, passes = total("seconds"), total("passes")
    same = sum(c["ids"] == plain[_pair(c)]["ids"] for c in cells)
    each = f"| {method} | {total('tokens') / max(seconds, 1e-9):.1f} "
    if not passes:
        return each + f"| | | | | | {same}/{len(cells)} | {statistics.fmean(c['distinct'] for c in cells):.2f} |"
    depth = [sum(c["accepted_at"][d] for c in cells) / tried if (tried := sum(c["tried_at"][d] for c in cells)) else None
             for d in range(4)]
    expected = sum(c["expected"] * c["passes"] for c in cells if c.get("expected")) / passes
    target, draft = total("target_seconds") / seconds, total("draft_seconds") / seconds
    return (each + f"| {total('generated') / passes:.2f} | {expected or float('nan'):.2f} "
            f"| {total('target_rows') / max(total('target_passes'), 1):.2f} | "
            + ", ".join("-" if x is None else f"{x:.2f}" for x in depth)
            + f" | {target:.0%}, {draft:.0%}, {max(0.0, 1 - target - draft):.0%} | {same}/{len(cells)} "
            f"| {statistics.fmean(c['distinct'] for c in cells):.2f} |")


if __name__ == "__main__":
    main()
