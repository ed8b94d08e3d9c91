"""Does `verify` raise no alarm where nothing is wrong? All methods that a small model can run, seed by seed, for a
bounded time.

    python benchmarks/clean_seeds.py --minutes 25 > lab/reports/verify-clean.csv

Seeds go round all methods in turn, so whenever the time is up every method has had about as many. A row a method:
its promise, by what it was held to, seeds, alarms, the place of the first alarm, and seconds of a core.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from polydec import load
from polydec.api import LoadedModel
from polydec.base.errors import PolydecError
from polydec.core.types import Exactness
from polydec.lab.bench.cache_drift import measure_cache_drift
from polydec.lab.bench.certify import compare_greedy_texts
from polydec.lab.bench.law_distances import measure_law_distances
from polydec.lab.bench.sampled_laws import OTHERS, draw_texts, sample_against_law
from polydec.lab.bench.schedule_laws import sample_canvas_law
from polydec.lab.bench.search_claims import audit_search
from polydec.lab.bench.trials import MethodTrial
from polydec.methods.registry import registry

PROMPTS = [("Once upon a time", True), ("def mean(values):", True)]
CANVAS = [("copy: 1234", False)]
SAMPLES, TOKENS, HEAT = 8, 8, 0.9
SEARCHES = ("search", "rollouts", "routing")


@dataclass
class Row:
    """What came of one method so far."""

    method: str
    promise: str
    by: str
    seeds: int = 0
    alarms: int = 0
    place: str = ""
    seconds: float = 0.0


def rows_of(lm: LoadedModel, family: str) -> list[Row]:
    """The methods that this model can run, and by what each is held to its promise."""
    kit, out = lm.recipe_kit(), list[Row]()
    for name in sorted(registry.of_family(family)):
        card = registry.get_recipe_module(name).CARD
        if registry.can_use_method(name, kit):
            by = _evidence(family, card.kind, card.guarantee)
            out.append(Row(name, card.guarantee.value, by))
    return out


def _evidence(family: str, kind: str, promise: Exactness) -> str:
    if family == "diffusion":
        return "law" if promise is Exactness.LAW else "cache"
    if kind in SEARCHES:
        return "scores"
    return "law" if promise is Exactness.LAW else "distance"


def place_of(lm: LoadedModel, row: Row, seed: int, plain: Any) -> str:
    """Where an alarm stands; "" where there is none."""
    if row.by == "scores":
        request = {"sampling": lm.sampling_with(repetition_penalty=1.2), "max_tokens": 12}
        return audit_search(MethodTrial(lm, PROMPTS, row.method, {}, request, seed=seed)).place
    if row.by == "cache":
        text, raw = CANVAS[0]
        asked = {"sampling": lm.sampling_with(), "max_tokens": 14, "raw": raw, "seed": seed}
        found = measure_cache_drift(lm, text, row.method, {}, **asked)
        return "" if found.stale is None else f"pass {found.stale}: stale"
    trial = warm_trial(lm, row.method, seed)
    if row.by == "distance":
        return measure_law_distances(trial).place
    if plain is None:
        return sample_canvas_law(replace(trial, prompts=CANVAS)).place
    greedy = compare_greedy_texts(lm, *_greedy(lm), row.method, {}, seed=seed, **_asked(lm))
    if greedy.verdict == "fault":
        return f"greedy: {greedy.place}"
    return sample_against_law(trial, plain).place


def warm_trial(lm: LoadedModel, method: str, seed: int) -> MethodTrial:
    """A method that draws."""
    request = {"max_tokens": TOKENS, "sampling": lm.sampling_with(temperature=HEAT)}
    return MethodTrial(lm, PROMPTS, method, {}, request, SAMPLES, seed)


def _greedy(lm: LoadedModel) -> tuple[str]:
    return (PROMPTS[0][0],)


def _asked(lm: LoadedModel) -> dict[str, Any]:
    return {"sampling": lm.sampling_with(), "max_tokens": 2 * TOKENS, "raw": True}


def turns(most: int) -> Iterator[tuple[LoadedModel, Row, int, Any]]:
    """A model, a method, a seed and plain decoding's draws of that seed, round by round."""
    sides = list[tuple[LoadedModel, list[Row]]]()
    for name, family in (("zoo:tiny", "ar"), ("zoo:diffusion", "diffusion")):
        lm = load(name, dtype="float32", threads=1)
        sides.append((lm, rows_of(lm, family)))
    for seed in range(most):
        for lm, some in sides:
            text = any(row.by == "distance" for row in some)
            plain = draw_texts(warm_trial(lm, "plain", seed + OTHERS), told=True) if text else None
            for row in some:
                yield lm, row, seed, plain


def main() -> None:
    parser = argparse.ArgumentParser(description="`verify` on clean seeds of every method.")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    rows, end = dict[int, Row](), time.monotonic() + 60.0 * given.minutes
    for lm, row, seed, plain in turns(given.seeds):
        rows[id(row)] = row
        if time.monotonic() > end:
            break
        began = time.process_time()
        try:
            place = place_of(lm, row, seed, plain)
        except PolydecError as error:
            place = f"refused: {error}"
        row.seconds += time.process_time() - began
        row.seeds, row.alarms = row.seeds + 1, row.alarms + bool(place)
        if place and not row.place:
            row.place = place
            print(f"seed {seed}, {row.method}: {place}", file=sys.stderr, flush=True)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("method", "promise", "held_to", "seeds", "alarms", "place", "seconds"))
    for r in sorted(rows.values(), key=lambda r: r.method):
        out.writerow((r.method, r.promise, r.by, r.seeds, r.alarms, r.place, f"{r.seconds:.1f}"))


if __name__ == "__main__":
    main()
