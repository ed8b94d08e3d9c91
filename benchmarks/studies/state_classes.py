"""Classification by hidden-state optimisation: intents behind a prompt whose keys and values took steps down its own loss.

    POLYDEC_DATA=TEXTS python -m benchmarks.studies.state_classes --csv lab/reports/state-classes.csv [--model zoo:smollm2]

A seed draws six intents of CLINC150 and four examples of each, of the texts whose SHA-1 mod 10 is below 7; twenty questions of
each intent are others. As `polydec bench --suite state-classification`: the prompt is read in segments of 32 tokens, all its
entries take a step of each rate behind a segment, and then the likeliest intent's name is compared. The file has a row of
every model, seed and rate as soon as it is there: the share that is right, the change from rate 0 with its interval over
questions, and the nats of the right intent among the six.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import time
from pathlib import Path

import torch
from benchmarks.classify import learned_from
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.intervals import mean_with_interval

from polydec.lab.bench.state_classification import ClassificationTask, rate_steps
from polydec.lab.commands.studies.hidden_states import RATES, SEGMENT
from polydec.lab.train.network import from_weights
from polydec.models.sessions import sources

CLASSES, SHOTS, ASKED = 6, 4, 20
"""Intents of a seed, examples and questions of each."""


def draw_intents(folder: Path, seed: int, count: int) -> ClassificationTask:
    """The task of a seed, with so many questions of each intent; names of intents are written in words."""
    by_intent = dict[str, list[str]]()
    path = folder / "intents_clinc150/train_val.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            by_intent.setdefault(row["intent"].replace("_", " "), []).append(row["text"])
    # "oos" is what belongs to no intent.
    del by_intent["oos"]
    dice = random.Random(seed)
    classes = tuple(sorted(dice.sample(sorted(by_intent), CLASSES)))
    shown = [
        (text, name)
        for name in classes
        for text in dice.sample([t for t in by_intent[name] if learned_from(t)], SHOTS)
    ]
    asked = [
        (text, name)
        for name in classes
        for text in dice.sample([t for t in by_intent[name] if not learned_from(t)], count)
    ]
    # Examples of one class in a row would teach that a class repeats the one before it.
    dice.shuffle(shown)
    return ClassificationTask(classes, tuple(shown), tuple(asked))


def main() -> None:
    """A row a rate, and the changes over seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="the first one is 0")
    parser.add_argument("--asked", type=int, default=ASKED, help="questions of each intent")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    source = sources.open_source(asked.model)
    network = from_weights(source.config, source.weights)
    folder = Path(os.environ["POLYDEC_DATA"])
    changes = dict[float, list[float]]()
    for seed in asked.seeds:
        began = time.process_time()
        task = draw_intents(folder, seed, asked.asked)
        for told in rate_steps(network, task, source.text.encode, asked.rates, SEGMENT):
            low, high = told["interval"]
            row = {"model": asked.model, "seed": seed, "rate": told["rate"]}
            row |= {"questions": len(task.asked), "right": told["right"], "change": told["change"]}
            row |= {"low": low, "high": high, "nats": told["nats"]}
            print(row, round(time.process_time() - began, 1), flush=True)
            merge_csv(asked.csv, [row], ("model", "seed", "rate"))
            changes.setdefault(told["rate"], []).append(told["change"])
    for rate, values in changes.items():
        print(rate, mean_with_interval(values) if len(values) > 1 else values[0], flush=True)


if __name__ == "__main__":
    main()
