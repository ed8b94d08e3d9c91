"""How much sorting texts into classes depends on the prompt: a single one against sets of four (Multi-Prompting Decoder).

    POLYDEC_DATA=TEXTS python benchmarks/classify.py lab/reports/classify.csv
    POLYDEC_DATA=TEXTS python benchmarks/classify.py FILE averaged    # the ways whose names begin so

Twelve intents of CLINC150 (every twelfth by name), four examples of each, three drawings of them. Examples are texts whose
SHA-1 mod 10 is below 7, tests are others (`tuning`: of the former, too; nothing is written then). zoo:smollm2, twelve prompts:
each alone, and fifteen sets of four. A row a way: the mean accuracy over prompts and drawings, and the standard deviation over
prompts (over sets), its mean over drawings.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch
from torch import Tensor

import polydec
from polydec.request.classifier import last_token_states, of_states
from polydec.request.deciding import PROMPTS, ClassifierSettings

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
TWELVE = (
    *PROMPTS,
    "{text}\nThe intent of the user is",
    "Question: {text}\nKeywords:",
    "Customer: {text}\nThe customer asks about",
    "{text}\n\nIn short, this is a question about",
    "Here is a message: {text} It is about",
    "Text: {text}\nLabel:",
    "{text} #",
    "An assistant hears: {text}\nIt opens the app for",
)
SHOTS, DRAWINGS, TOGETHER = 4, 3, 4
POOL, TESTS = 16, 12
COLUMNS = ("way", "prompts", "accuracy", "least", "most", "deviation")


@dataclass(frozen=True)
class Texts:
    """state_NPH of texts, and the classes of these."""

    state_NPH: Tensor
    labels: tuple[str, ...]

    def chosen(self, index: Sequence[int], prompts: Sequence[int]) -> Texts:
        state = self.state_NPH[torch.tensor(index)][:, torch.tensor(prompts)]
        return Texts(state, tuple(self.labels[i] for i in index))


def rows() -> list[tuple[str, str]]:
    """Texts with their classes."""
    with gzip.open(DATA / "intents_clinc150/train_val.jsonl.gz", "rt", encoding="utf-8") as file:
        every = [json.loads(line) for line in file]
    names = sorted({row["intent"] for row in every} - {"oos"})[::12][:12]
    return [(row["text"], row["intent"]) for row in every if row["intent"] in names]


def learned_from(text: str) -> bool:
    return int(sha1(text.encode()).hexdigest(), 16) % 10 < 7


def first(every: Sequence[tuple[str, str]], seen: bool, each: int) -> list[tuple[str, str]]:
    """The first texts of each class on one side of the split."""
    out, counts = list[tuple[str, str]](), dict[str, int]()
    for text, label in every:
        if learned_from(text) == seen and counts.get(label, 0) < each:
            counts[label] = counts.get(label, 0) + 1
            out.append((text, label))
    return out


def read(lm: Any, every: Sequence[tuple[str, str]]) -> Texts:
    return Texts(
        last_token_states(lm, [t for t, _ in every], TWELVE), tuple(label for _, label in every)
    )


def drawn(labels: Sequence[str], seed: int) -> list[int]:
    """Examples of a drawing."""
    dice = random.Random(seed)
    return [
        i
        for name in sorted(set(labels))
        for i in sorted(dice.sample([i for i, x in enumerate(labels) if x == name], SHOTS))
    ]


def sets() -> list[tuple[int, ...]]:
    """Fifteen sets of four: five times all twelve prompts, parted."""
    out, dice = list[tuple[int, ...]](), random.Random(0)
    for _ in range(5):
        order = dice.sample(range(12), 12)
        out += [tuple(order[i : i + TOGETHER]) for i in range(0, 12, TOGETHER)]
    return out


def accuracy(lm: Any, pool: Texts, tests: Texts, prompts: Sequence[int], seed: int, how: Any):
    index = drawn(pool.labels, seed)
    examples = pool.chosen(index, prompts)
    asked = tuple(TWELVE[p] for p in prompts)
    names = tuple(sorted(set(pool.labels)))
    made = of_states(lm, examples.state_NPH, examples.labels, names, asked, how)
    score_NC = made.of_states(tests.chosen(range(len(tests.labels)), prompts).state_NPH)
    right = [names[c] == label for c, label in zip(score_NC.argmax(-1).tolist(), tests.labels)]
    return mean(right)


def pooled(texts: Texts, prompts: Sequence[int]) -> Texts:
    """The mean state over prompts, as if of one: the weaker way to join them."""
    return Texts(texts.state_NPH[:, list(prompts)].mean(1, keepdim=True), texts.labels)


WAYS: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("alone", False, {}),
    ("alone, prototypes only", False, {"weight": 0.0}),
    ("alone, words only", False, {"epochs": 0, "sharpness": 1e-9, "weight": 1.0}),
    ("transported", True, {}),
    ("transported, prototypes only", True, {"weight": 0.0}),
    ("transported, words only", True, {"epochs": 0, "sharpness": 1e-9, "weight": 1.0}),
    ("averaged", True, {"averaged": True}),
    ("averaged, prototypes only", True, {"averaged": True, "weight": 0.0}),
)


def measured(lm: Any, pool: Texts, tests: Texts, ways: Any = WAYS) -> Iterator[tuple[Any, ...]]:
    groups = sets()
    for name, together, options in ways:
        asked = groups if together else [(p,) for p in range(12)]
        of_drawing = [
            [
                accuracy(lm, pool, tests, prompts, seed, ClassifierSettings(seed=seed, **options))
                for prompts in asked
            ]
            for seed in range(DRAWINGS)
        ]
        flat = [x for row in of_drawing for x in row]
        spread = mean(pstdev(row) for row in of_drawing)
        by_prompt = [mean(column) for column in zip(*of_drawing, strict=True)]
        figures = (mean(flat), min(by_prompt), max(by_prompt), spread)
        yield (name, TOGETHER if together else 1, *(f"{x:.4f}" for x in figures))


def main(out: str, only: str = "") -> None:
    torch.set_num_threads(1)
    lm = polydec.load("zoo:smollm2", draft=None, ngrams=None, threads=1)
    every, begun = rows(), time.process_time()
    pool = read(lm, first(every, True, POOL))
    if out == "tuning":
        tests = read(
            lm, [x for x in first(every, True, POOL + TESTS) if x not in first(every, True, POOL)]
        )
    else:
        tests = read(lm, first(every, False, TESTS))
    print(
        f"{len(pool.labels) + len(tests.labels)} texts read in {time.process_time() - begun:.0f} s of a core"
    )
    lines = [COLUMNS]
    for row in measured(lm, pool, tests, [way for way in WAYS if way[0].startswith(only)]):
        print(*row, flush=True)
        lines.append(row)
    if out != "tuning":
        with open(out, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
