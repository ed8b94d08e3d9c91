"""RUM-SUNDAE: tasks whose answers are rewritten from noise, by networks that began as a masked model and that did not.

    python -m benchmarks.studies.noise --out DIR [--steps 600] [--tried 20] [--seeds 3] [--csv FILE] [--lengths]

Trainings of the same tasks, rows and steps: from zoo:diffusion in two steps (published), from zoo:diffusion in one, and from
random weights in two. On fresh held-out tasks, the same ones for every training of a seed: passes, and the share of right
answers, of one text and of the likeliest of four. Beside it zoo:diffusion as it is, one token a pass, all at once, and written
from noise. With --lengths only the published training is asked, behind a head that foretells how long an answer is: of the
likeliest length, and of the four likeliest. The file has a row of every training, way and seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.csv_rows import merge_csv

from polydec import Ask, generate, load
from polydec.api import LoadedModel
from polydec.lab.train.diffusion import train_diffusion
from polydec.lab.train.held_out_questions import fresh_held_out_tasks
from polydec.lab.train.probe import train_probe
from polydec.lab.train.specs.diffusion import DiffusionSpec
from polydec.lab.train.specs.probe.length import LengthSpec
from polydec.lab.train.tasks import SHIPPED, is_right_task_answer

ROOM = 13
UNTRAINED = "none: zoo:diffusion"
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one text": ("rum-sundae", {}),
    "of four texts": ("rum-sundae", {"starts": 4}),
    "all positions a round": ("rum-sundae", {"share": 1.0}),
}
FORETOLD: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "of the likeliest length": ("rum-sundae", {"lengths": 1}),
    "of four lengths": ("rum-sundae", {"lengths": 4}),
}
MASKED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one a pass": ("llada", {"block": 0}),
    "all at once": ("llada", {"block": 0, "steps": 1}),
    "from noise": ("rum-sundae", {}),
}
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "masked model, two steps": {"start": "zoo:diffusion", "unroll": 2},
    "masked model, one step": {"start": "zoo:diffusion", "unroll": 1},
    "random weights, two steps": {"unroll": 2},
}


def measured(
    model: LoadedModel, tried: int, seed: int, ways: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> dict[str, tuple[float, float]]:
    """Of each way passes an answer, and the share of right answers."""
    tasks = [(name, t) for name in SHIPPED for t in fresh_held_out_tasks(name, seed, tried)]
    out = dict[str, tuple[float, float]]()
    for way, (method, options) in ways.items():
        asks = [
            Ask(t.question, method=method, options=options, max_tokens=ROOM, seed=at)
            for at, (_, t) in enumerate(tasks)
        ]
        answers = generate(model, asks)
        right = [
            is_right_task_answer(name, t.question, answer.text)
            for (name, t), answer in zip(tasks, answers, strict=True)
        ]
        out[way] = (mean([a.metrics["target_passes"] for a in answers]), mean(right))
    return out


def keep_rows(
    path: Path | None, name: str, seed: int, figures: Mapping[str, tuple[float, float]]
) -> None:
    """Write what a training of a seed came to."""
    if path is None:
        return
    rows = [
        {"training": name, "way": way, "seed": seed, "passes": round(a, 4), "right": round(b, 4)}
        for way, (a, b) in figures.items()
    ]
    merge_csv(path, rows, ("training", "way", "seed"))


def foretold(out: Path, seed: int, tried: int) -> dict[str, tuple[float, float]]:
    """Figures of a trained network behind a head that foretells lengths."""
    head = f"{out}-lengths"
    told = train_probe(LengthSpec(head, str(out), tasks=SHIPPED, longest=ROOM, seed=seed))
    print(json.dumps({"seed": seed, "first": told["first_right"], "four": told["of_four_right"]}))
    model = load(str(out), draft=None, trained=[head], threads=1)
    return measured(model, tried, 77 + seed, FORETOLD)


def shown(name: str, rows: list[dict[str, tuple[float, float]]]) -> str:
    """Figures of each seed, and their means."""
    each = {way: [[round(x, 3) for x in row[way]] for row in rows] for way in rows[0]}
    means = {
        way: [round(mean([row[way][i] for row in rows]), 3) for i in (0, 1)] for way in rows[0]
    }
    return json.dumps({"training": name, "mean": means, "seeds": each})


def main() -> None:
    """One line of JSON a training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tried", type=int, default=20, help="held-out tasks of each kind")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--lengths", action="store_true")
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.lengths:
        name = next(iter(TRAININGS))
        rows = []
        for seed in range(asked.first_seed, asked.seeds):
            out = asked.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            rows.append(foretold(out, seed, asked.tried))
            keep_rows(asked.csv, name, seed, rows[-1])
        print(shown(name, rows), flush=True)
        return
    base = load("zoo:diffusion", draft=None, threads=1)
    rows = [measured(base, asked.tried, 77 + seed, MASKED) for seed in range(asked.seeds)]
    for seed, row in enumerate(rows):
        keep_rows(asked.csv, UNTRAINED, seed, row)
    print(shown(UNTRAINED, rows), flush=True)
    for name, fields in TRAININGS.items():
        rows = []
        for seed in range(asked.seeds):
            out = asked.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            train_diffusion(
                DiffusionSpec(
                    str(out), SHIPPED, steps=asked.steps, rows=asked.rows, seed=seed, **fields
                )
            )
            model = load(str(out), draft=None, threads=1)
            rows.append(measured(model, asked.tried, 77 + seed, WAYS))
            keep_rows(asked.csv, name, seed, rows[-1])
            print(shown(f"{name}, seed {seed}", rows[-1:]), flush=True)
        print(shown(name, rows), flush=True)


if __name__ == "__main__":
    main()
