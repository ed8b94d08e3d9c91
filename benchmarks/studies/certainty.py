"""dParallel's training as published (adapters, half of a block hidden, later blocks too) beside ours (all weights, any share).

    python -m benchmarks.studies.certainty --out DIR [--steps 300] [--each 250] [--seeds 0,1,2] [--csv FILE]

Both begin with zoo:diffusion, learn from its own answers, the same ones for a seed, and take the same steps. A block of three
positions is one of two halves of six digits. On fresh held-out tasks (those that the model knows): passes and right answers of
one token a pass, and of every gap of at most so many nats of entropy at once. One line a seed, and the mean.
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
from polydec.lab.train.dparallel import train_dparallel
from polydec.lab.train.held_out_questions import fresh_held_out_tasks
from polydec.lab.train.specs.dparallel import DParallelSpec
from polydec.lab.train.tasks import SHIPPED, is_right_task_answer

NATS = (0.1, 0.2, 0.45)
ROOM = 13
TRAININGS: Mapping[str, dict[str, Any] | None] = {
    "none": None,
    "ours": {},
    "ours, without entropy": {"beta": 0.0},
    "published": {"lora": 16, "block": 3, "half": True},
    "published, all weights": {"block": 3, "half": True},
}


def measured(model: LoadedModel, each: int, seed: int) -> dict[str, tuple[float, float]]:
    """Of each way passes an answer, and the share of right answers."""
    tasks = [(name, t) for name in SHIPPED for t in fresh_held_out_tasks(name, seed, each)]
    ways: Mapping[str, tuple[str, dict[str, Any]]] = {
        "one a pass": ("llada", {}),
        **{f"{nats} nats": ("dparallel", {"threshold": nats}) for nats in NATS},
    }
    out = dict[str, tuple[float, float]]()
    for way, (method, options) in ways.items():
        asks = [
            Ask(t.question, method=method, options={"block": 0, **options}, max_tokens=ROOM)
            for _, t in tasks
        ]
        answers = generate(model, asks)
        out[way] = (
            mean([answer.metrics["target_passes"] for answer in answers]),
            mean(
                [
                    is_right_task_answer(name, t.question, answer.text)
                    for (name, t), answer in zip(tasks, answers, strict=True)
                ]
            ),
        )
    return out


def main() -> None:
    """One line of JSON a training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--each", type=int, default=250, help="answers of each task, to learn from")
    parser.add_argument("--tried", type=int, default=20, help="held-out tasks of each kind")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--csv", type=Path)
    parser.add_argument(
        "--trainings", default=";".join(TRAININGS), help="names with ; between them"
    )
    asked = parser.parse_args()
    for name in asked.trainings.split(";"):
        fields = TRAININGS[name]
        rows = list[dict[str, tuple[float, float]]]()
        for seed in map(int, asked.seeds.split(",")):
            model = "zoo:diffusion"
            if fields is not None:
                model = str(asked.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}")
                train_dparallel(
                    DParallelSpec(model, each=asked.each, steps=asked.steps, seed=seed, **fields)
                )
            rows.append(measured(load(model, draft=None, threads=1), asked.tried, 77 + seed))
            if asked.csv:
                told = [
                    {"training": name, "way": way, "seed": seed}
                    | {"passes": round(passes, 4), "right": round(right, 4)}
                    for way, (passes, right) in rows[-1].items()
                ]
                merge_csv(asked.csv, told, ("training", "way", "seed"))
            figures = {way: [round(x, 3) for x in pair] for way, pair in rows[-1].items()}
            print(json.dumps({"training": name, "seed": seed, **figures}), flush=True)
        means = {
            way: [round(mean([row[way][i] for row in rows]), 3) for i in (0, 1)] for way in rows[0]
        }
        print(json.dumps({"training": name, "mean of seeds": len(rows), **means}), flush=True)


if __name__ == "__main__":
    main()
