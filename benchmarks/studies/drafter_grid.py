"""Scylla's laws over trained drafters on states: accepted tokens a pass by a drafter's training and its size, three seeds.

    python -m benchmarks.studies.drafter_grid --out DIR --csv lab/reports/drafter-grid.csv

`zoo:tiny` writes answers once, and every drafter learns from these (`train eagle --layers N --steps M --text FILE`): each
number of steps is a training of its own with a whole schedule. Then each drafts chains of five for held-out prompts, greedy and
at T = 1. A seed draws the weights and the order of texts. The file has a row of every drafter and law. Printed is of each law
and seed what a doubling of the tokens and of the parameters adds, how much of the points' spread the law explains (R²,
published 0.99), by how much it misses points that were left out, and the longest trainings when it is fitted to all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval
from benchmarks.studies.shared_text import train_on_shared_text

from polydec import load
from polydec.lab.bench.scaling import (
    LAWS,
    drafters_of,
    extrapolation_error,
    fit_scaling_law,
    prompts_of,
    scaling_points,
    scaling_rows,
)
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.specs.states import StatesSpec

TARGET = "zoo:tiny"


def train_grid(
    out: Path, seed: int, layers: Sequence[int], steps: Sequence[int], each: int, rows: int
) -> None:
    """Train every drafter of a seed, on the text that the first one of all let the target write."""
    for deep in layers:
        for count in steps:
            where = out / f"seed-{seed}" / f"layers-{deep}-steps-{count}"
            if (where / RESULT).exists():
                # A grid that was interrupted goes on with the drafter behind this one.
                continue
            spec = StatesSpec(
                str(where),
                "eagle",
                TARGET,
                each=each,
                max_tokens=96,
                layers=deep,
                steps=count,
                rows=rows,
                seed=seed,
                save_every=count,
            )
            train_on_shared_text(out, spec)


def law_figures(rows: Sequence[dict[str, Any]], law: str) -> dict[str, float]:
    """What the law of a seed comes to."""
    points = scaling_points(rows, law)
    fitted = fit_scaling_law(points)
    return {
        "a doubling of the tokens": fitted.factors[1],
        "a doubling of the parameters": fitted.factors[2],
        "R²": fitted.explained,
        "left out": fitted.left_out,
        "beyond": extrapolation_error(points),
    }


def main() -> None:
    """A row a drafter and law, and the laws' figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--layers", default="1,2,4")
    parser.add_argument("--steps", default="20,40,80,160")
    parser.add_argument("--each", type=int, default=60, help="prompts of each kind")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    layers, steps = ([int(n) for n in words.split(",")] for words in (asked.layers, asked.steps))
    model = load(TARGET, draft=None, threads=1)
    by_law = {law: dict[str, list[float]]() for law in LAWS}
    for seed in map(int, asked.seeds.split(",")):
        train_grid(asked.out, seed, layers, steps, asked.each, asked.rows)
        folder = asked.out / f"seed-{seed}"
        prompts = prompts_of(folder, model.checkpoint.lm.vocab.size, asked.prompts)
        rows = list(scaling_rows(model, drafters_of(folder, model), prompts))
        if asked.csv:
            kept = [{**row, "seed": seed} for row in rows]
            merge_csv(asked.csv, kept, ("law", "seed", "layers", "tokens"))
        for law, figures in by_law.items():
            for name, value in law_figures(rows, law).items():
                figures.setdefault(name, []).append(value)
            print(seed, law, {k: round(v[-1], 3) for k, v in figures.items()}, flush=True)
    for law, figures in by_law.items():
        for name, values in figures.items():
            told = mean_with_interval(values) if len(values) > 1 else round(values[0], 3)
            print(law, name, told, flush=True)


if __name__ == "__main__":
    main()
