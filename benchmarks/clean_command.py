"""Does the command `polydec verify` raise no alarm where nothing is wrong? All methods that a small model can run.

    python benchmarks/clean_command.py --seeds 20 --minutes 30 > docs/verify-command.csv

Each run is the whole command, from its arguments to its exit code and certificate, in this process: a model is loaded once, and
what no seed changes (the enumeration of a law, searches on toys) is done once a method. Even seeds are greedy, odd ones drawn.
Seeds go round all methods in turn, so whenever the time is up every method has had about as many. A row a method: runs,
verdicts, and what the first alarm was.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from polydec import api
from polydec.bench import enumerated, searched
from polydec.cli.main import main as polydec
from polydec.methods import registry

PROMPTS = 1
"""Of those that are built in."""
DRAWN, TOKENS = 8, 8


@dataclass
class Row:
    """What came of one method so far. refused: a sentence where the command cannot be asked this."""

    model: str
    method: str
    verdicts: Counter[str] = field(default_factory=Counter[str])
    first: str = ""
    refused: str = ""
    seconds: float = 0.0


def rows() -> list[Row]:
    """The methods that each small model can run as it is shipped."""
    out = list[Row]()
    for model, family in (("zoo:tiny", "ar"), ("zoo:diffusion", "diffusion")):
        kit = api.load(model).kit()
        out += [
            Row(model, name)
            for name in sorted(registry.of_family(family))
            if registry.can(name, kit)
        ]
    return out


def asked(row: Row, seed: int) -> list[str]:
    """The command line. Even seeds are greedy."""
    drawn = ("--temperature", "0.9", "--samples", str(DRAWN)) if seed % 2 else ()
    common = ("--limit", str(PROMPTS), "--max-tokens", str(TOKENS), "--seed", str(seed), "--json")
    return ["verify", "--model", row.model, "--method", row.method, *common, *drawn]


def run(line: list[str]) -> tuple[int, str, str]:
    """Exit code, and what came on both streams."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["polydec", *line]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            polydec()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
    return int(code), out.getvalue(), err.getvalue()


def turns(seeds: int) -> Iterator[tuple[Row, int]]:
    every = rows()
    for seed in range(seeds):
        for row in every:
            if not row.refused or seed < 2:
                yield row, seed


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--seeds", type=int, default=20)
    ask.add_argument("--minutes", type=float, default=30.0, help="of processor time")
    asked_for = ask.parse_args()
    api.load = cache(api.load)
    enumerated.enumerated = _once(enumerated.enumerated)
    searched.on_toys = _once(searched.on_toys)
    found, begun = dict[int, Row](), time.process_time()
    for row, seed in turns(asked_for.seeds):
        found[id(row)] = row
        if time.process_time() - begun > 60 * asked_for.minutes:
            break
        before = time.process_time()
        code, out, err = run(asked(row, seed))
        row.seconds += time.process_time() - before
        if code == 2:
            row.refused = err.strip().removeprefix("polydec: ")
            continue
        verdict = json.loads(out)["verdict"]
        row.verdicts[verdict] += 1
        if (code or verdict == "fault") and not row.first:
            row.first = f"seed {seed}: {json.loads(out).get('place')}"
            print(row.method, row.first, file=sys.stderr, flush=True)
    write = csv.writer(sys.stdout, lineterminator="\n")
    write.writerow(
        (
            "model",
            "method",
            "runs",
            "keeps",
            "near_ties",
            "measured",
            "faults",
            "first",
            "refused",
            "seconds",
        )
    )
    for row in found.values():
        kinds = [row.verdicts[v] for v in ("keeps it", "near-tie", "measured", "fault")]
        runs = sum(row.verdicts.values())
        write.writerow(
            (row.model, row.method, runs, *kinds, row.first, row.refused, f"{row.seconds:.1f}")
        )


def _once(work: Any) -> Any:
    """The same, which remembers what came of what."""
    known = dict[Any, Any]()

    def look(*given: Any) -> Any:
        key = repr(given)
        if key not in known:
            known[key] = work(*given)
        return known[key]

    return look


if __name__ == "__main__":
    main()
