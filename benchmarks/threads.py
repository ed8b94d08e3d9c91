"""What a pass of the compiled step costs with more threads: milliseconds and CPU milliseconds at 1, 2, 4, 8 and 16.

    python benchmarks/threads.py [--model zoo:smollm2] [--threads 1 2 4 8 16] [--rows 1 8] [--json]

More threads than cores show what happens where several programs share a machine: the pool must not collapse. Sides take turns,
medians; on a busy machine milliseconds say little, CPU milliseconds (of all threads, waiting in a loop included) a bit more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import torch

from polydec.core.types import ScoreRequest
from polydec.models.native.library import COMPUTES
from polydec.models.native.network import CpuStep
from polydec.models.nets.linear import cpu_name
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.sources import open_source


def passes(net: CpuStep, rows: int, context: int, count: int) -> list[tuple[float, float]]:
    """Milliseconds and CPU milliseconds of passes over fresh rows behind `context` cached ones; the first is dropped."""
    cache = net.new_cache()

    def feed(n: int) -> tuple[float, float]:
        tokens = tuple(torch.randint(0, net.size, (n,)).tolist())
        q = NetworkQuery(
            cache, cache.stage_slots(range(-1, n - 1)), tokens, range(n), ScoreRequest()
        )
        wall, cpu = time.perf_counter(), time.process_time()
        net.forward([q])
        return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)

    feed(context)
    cache.commit_path(range(context))
    out = list[tuple[float, float]]()
    for _ in range(count + 1):
        out.append(feed(rows))
        cache.commit_path(())
    return out[1:]


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="zoo:smollm2", help="a GGUF file, a directory or zoo:NAME")
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    p.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--compute", choices=COMPUTES, default="int16")
    p.add_argument("--rounds", type=int, default=5, help="turns of each number of threads")
    p.add_argument("--calls", type=int, default=10, help="timed passes of a turn")
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    for name in ("threads", "rows", "context", "rounds", "calls"):
        if min(x if isinstance(x := getattr(o, name), list) else [x]) < 1:
            p.error(f"--{name} must be at least 1")
    source = open_source(o.model)
    nets = {
        n: CpuStep.build(source.config, source.weights, threads=n, compute=o.compute)
        for n in o.threads
    }
    took = {(n, m): list[tuple[float, float]]() for m in o.rows for n in o.threads}
    for turn in range(o.rounds):
        print(f"turn {turn + 1} of {o.rounds}", file=sys.stderr, flush=True)
        for (n, m), all_of in took.items():
            all_of += passes(nets[n], m, o.context, o.calls)

    def median(n: int, m: int, which: int) -> float:
        return round(statistics.median(x[which] for x in took[n, m]), 2)

    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "model": o.model,
        "kernel": next(iter(nets.values())).kernel,
        "context": o.context,
        "passes": [
            {"rows": m, "threads": n, "ms": median(n, m, 0), "cpu_ms": median(n, m, 1)}
            for n, m in took
        ],
    }
    if o.json:
        print(json.dumps(found))
        return
    print(
        f"{o.model}, {found['kernel']}, context {o.context}; {found['cpu']}, {found['cores']} cores, "
        f"load {found['load']:.1f}"
    )
    print(
        f"{'rows':>5}{'threads':>9}{'ms':>9}{'CPU ms':>9}{'ms / ms(' + str(o.threads[0]) + ')':>12}"
    )
    for x in found["passes"]:
        ratio = x["ms"] / median(o.threads[0], x["rows"], 0)
        print(f"{x['rows']:>5}{x['threads']:>9}{x['ms']:>9.2f}{x['cpu_ms']:>9.2f}{ratio:>12.2f}")


if __name__ == "__main__":
    main()
