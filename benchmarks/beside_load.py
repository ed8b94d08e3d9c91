"""Decoding while other processes compute: tokens a second beside so many busy processes, over those of a quiet machine.

    python benchmarks/beside_load.py [--busy 0 1 2 4] [--methods plain auto] [--others llama.cpp] [--rounds 5] [--out FILE]

Each round goes through all numbers of busy processes, and under each all methods take turns on the same prompt, so that slow
changes of the machine fall on all alike. A busy process counts in a loop. Medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines

import polydec
from polydec.models.nets.linear import cpu_name

PROMPT = "Write a short story about a fox that finds a boat by the river."
SETTLING = 0.3
"""Seconds until the system has moved the busy processes to where they stay."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute, ended at the end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if running:
            time.sleep(SETTLING)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def polydec_speed(lm: Any, method: str, tokens: int) -> Callable[[], float]:
    """Tokens a second of one answer by a method."""

    def measured() -> float:
        began = time.perf_counter()
        answer = polydec.generate(lm, PROMPT, method=method, max_tokens=tokens, ignore_eos=True)
        return len(answer.token_ids) / (time.perf_counter() - began)

    return measured


def other_speed(engine: Any, tokens: int) -> Callable[[], float]:
    """Tokens a second of one answer by another engine."""
    row = SimpleNamespace(prompt=PROMPT, raw=False)

    def measured() -> float:
        answer = engine([row], {}, tokens, 0)
        return answer["generated"] / answer["whole_seconds"]

    return measured


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="zoo:smollm2", help="a GGUF file, a directory or zoo:NAME")
    p.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2, 4], help="busy processes")
    p.add_argument("--methods", nargs="+", default=["plain", "auto"])
    p.add_argument("--others", nargs="*", default=[], help="llama.cpp, transformers")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path, help="a JSONL file that gets a line for each measurement")
    a = p.parse_args()
    lm = polydec.load(a.model)
    sides = {name: polydec_speed(lm, name, a.tokens) for name in a.methods}
    sides |= {one.label: other_speed(one, a.tokens) for one in engines.open_all(a.others, lm)}
    for measured in sides.values():
        measured()
    speeds = defaultdict[tuple[str, int], list[float]](list)
    for _ in range(a.rounds):
        for count in a.busy:
            with busy_processes(count):
                for name, measured in sides.items():
                    # The number of threads follows what passes take: one answer lets it settle.
                    measured()
                    speed = measured()
                    speeds[name, count].append(speed)
                    if a.out:
                        with a.out.open("a", encoding="utf-8") as file:
                            line = {"side": name, "busy": count, "tokens_a_second": speed}
                            file.write(json.dumps(line) + "\n")
    print(
        f"{a.model}, {cpu_name()}, {os.cpu_count()} cores, {a.rounds} rounds of {a.tokens} tokens"
    )
    print("| | " + " | ".join(f"{count} busy" for count in a.busy) + " |")
    print("|---|" + "--:|" * len(a.busy))
    for name in sides:
        medians = [statistics.median(speeds[name, count]) for count in a.busy]
        cells = [f"{speed:.0f} ({speed / medians[0]:.2f})" for speed in medians]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
