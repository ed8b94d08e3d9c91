"""Does the command `polydec verify` raise no alarm where nothing is wrong? All methods that a small model can run.

    python benchmarks/small_artefacts.py out/small
    python benchmarks/clean_command.py --seeds 20 --minutes 30 --small out/small > lab/reports/verify-command.csv

Each run is the whole command, from its arguments to its exit code and certificate, in this process: a model is loaded once, and
what no seed changes (the enumeration of a law, searches on toys) is done once a method. Even seeds are greedy, odd ones drawn.
Seeds go round all methods in turn, so whenever the time is up every method has had about as many. A row a method: runs,
verdicts, and what the first alarm was. With --small also methods that need something trained: a promise holds whatever a
draft guesses, so artefacts of a few seconds serve. --without leaves out the
methods of an earlier file.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from small_artefacts import SETTINGS, Setting, command

from polydec import api
from polydec.lab.bench import enumerated_laws, search_claims
from polydec.methods.registry import registry

PROMPTS = 1
"""Of those that are built in."""
DRAWN, TOKENS = 8, 8


SHIPPED = (Setting("zoo:tiny"), Setting("zoo:diffusion", family="diffusion"))


@dataclass
class Row:
    """What came of one method so far. trained: what it was given beside the model; refused: a sentence where the command cannot
    be asked this."""

    setting: Setting
    model: str
    trained: str
    method: str
    verdicts: Counter[str] = field(default_factory=Counter[str])
    first: str = ""
    refused: str = ""
    seconds: float = 0.0


def rows(small: Path | None) -> list[Row]:
    """The methods that each model can run, the shipped ones as they are, then others by what was trained. Each stands with
    the first setting that serves it."""
    out = dict[str, Row]()
    for setting in (*SHIPPED, *(SETTINGS if small else ())):
        at = setting.at(small) if small else setting
        kit = api.load(at.model, trained=at.trained, **at.loaded).recipe_kit()
        trained = " ".join(name for name in (setting.draft, *setting.trained) if name)
        for name in sorted(registry.of_family(setting.family)):
            if name not in out and registry.can_use_method(name, kit):
                out[name] = Row(at, setting.model, trained, name)
    return list(out.values())


def asked(row: Row, seed: int) -> list[str]:
    """The command line. Even seeds are greedy."""
    drawn = ("--temperature", "0.9", "--samples", str(DRAWN)) if seed % 2 else ()
    common = ("--limit", str(PROMPTS), "--max-tokens", str(TOKENS), "--seed", str(seed), "--json")
    return ["verify", *row.setting.flags, "--method", row.method, *common, *drawn]


def turns(every: Sequence[Row], seeds: int) -> Iterator[tuple[Row, int]]:
    for seed in range(seeds):
        for row in every:
            if not row.refused or seed < 2:
                yield row, seed


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--seeds", type=int, default=20)
    ask.add_argument("--minutes", type=float, default=30.0, help="of processor time")
    ask.add_argument("--small", type=Path, help="what benchmarks/small_artefacts.py made")
    ask.add_argument(
        "--without", type=Path, help="a file of this command, whose methods are left out"
    )
    asked_for = ask.parse_args()
    api.load = cache(api.load)
    enumerated_laws.enumerate_output_laws = _once(enumerated_laws.enumerate_output_laws)
    search_claims.on_toys = _once(search_claims.on_toys)
    known = set[str]()
    if asked_for.without:
        with asked_for.without.open_session(encoding="utf-8") as file:
            known = {row["method"] for row in csv.DictReader(file)}
    every = [row for row in rows(asked_for.small) if row.method not in known]
    found, begun = dict[int, Row](), time.process_time()
    for row, seed in turns(every, asked_for.seeds):
        found[id(row)] = row
        if time.process_time() - begun > 60 * asked_for.minutes:
            break
        before = time.process_time()
        code, out, err = command(asked(row, seed))
        row.seconds += time.process_time() - before
        if code == 2:
            row.refused = err.strip().removeprefix("polydec: ")
            continue
        told = json.loads(out) if out.strip() else {"verdict": "fault", "place": err.strip()}
        row.verdicts[told["verdict"]] += 1
        if (code or told["verdict"] == "fault") and not row.first:
            row.first = f"seed {seed}: {told.get('place')}"
            print(row.method, row.first, file=sys.stderr, flush=True)
    write = csv.writer(sys.stdout, lineterminator="\n")
    write.writerow(
        (
            "model",
            "trained",
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
        told = (row.model, row.trained, row.method, runs, *kinds, row.first, row.refused)
        write.writerow((*told, f"{row.seconds:.1f}"))


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
