"""What MEAP's holes do for looking up a key among remarks: recall of a key's value, three seeds, as a table.

    python -m benchmarks.studies.key_retrieval --csv lab/reports/key-retrieval.csv

A page is tokens: records (a key and its value) among remarks (two words), then keys that are asked again, each with its
value. Two forms, with the objectives of `polydec train lm`: `pages` (every token is learned, with holes or without, from random
weights) and `answers` (the model of the first steps goes on with questions of four keys and the four values as answer, with
a second, masked copy or without). Recall: how often the value of a key is the likeliest token, on pages of other draws; by
chance 0.1. Clean loss: nats a token of the part that can be known, without holes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import write_csv
from benchmarks.studies.intervals import mean_with_interval
from torch import Tensor

from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.loop import fit_network
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.objectives.answer_tokens import AnswerTokens
from polydec.lab.train.objectives.meap import MASK, MeapObjective
from polydec.lab.train.objectives.meap_answers import MeapAnswers
from polydec.lab.train.objectives.protocols import AnswerObjective, mean_row_loss
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape

SEEDS = (0, 1, 2)
IDS = {BEGIN: 0, END: 1, MASK: 2}
ASK = 3
KEYS, VALUES, WORDS = range(4, 30), range(30, 40), range(40, 56)
RECORDS, REMARKS, ASKED = 8, 4, 4
SHAPE = LlamaShape(56, width=64, layers=2, heads=2, kv_heads=2, inner=128, context=64)
ROWS = 64
TESTED = 512


def draw_page(rng: np.random.Generator) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a page, and of the keys that are asked for each with its value."""
    keys = rng.choice(KEYS, RECORDS, replace=False).tolist()
    value = {key: int(rng.choice(VALUES)) for key in keys}
    lines = [[key, value[key]] for key in keys]
    lines += [rng.choice(WORDS, 2).tolist() for _ in range(REMARKS)]
    page = [x for i in rng.permutation(len(lines)) for x in lines[i]]
    return page, [(k, value[k]) for k in rng.choice(keys, ASKED, replace=False).tolist()]


def page_rows(rng: np.random.Generator, count: int) -> Tensor:
    """Rows of a page and its asked keys, each with its value behind it, shape ``[count, T]``."""
    rows = list[list[int]]()
    for _ in range(count):
        page, asked = draw_page(rng)
        rows.append([IDS[BEGIN], *page, *(x for k, v in asked for x in (ASK, k, v))])
    return torch.tensor(rows)


def question(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """A page with a question of all keys behind it, and the answer with its end."""
    page, asked = draw_page(rng)
    return [IDS[BEGIN], *page, ASK, *(k for k, _ in asked)], [*(v for _, v in asked), IDS[END]]


def run(
    network: TrainableLlama, steps: int, loss: Callable[[np.random.Generator], Tensor], seed: int
) -> float:
    """Train in place, and return the seconds that it took."""
    began = time.perf_counter()
    schedule = TrainingSchedule(steps, 3e-3, muon=0.02, log_every=steps)
    tokens = ROWS * SHAPE.context
    fit_network(network, lambda i: (loss(np.random.default_rng([seed, i])), tokens), schedule)
    return round(time.perf_counter() - began, 1)


@torch.no_grad()
def page_figures(network: TrainableLlama) -> dict[str, float]:
    """Recall of the keys that are asked, and nats a token of their values."""
    rows = page_rows(np.random.default_rng(10**6), TESTED)
    at = torch.arange(rows.shape[1] - 3 * ASKED + 1, rows.shape[1], 3)  # the keys
    logp = network(rows)[:, at].log_softmax(-1)
    wanted = rows[:, at + 1]
    nats = -logp.gather(-1, wanted[..., None]).mean()
    recall = (logp.argmax(-1) == wanted).float().mean()
    return {"recall": round(float(recall), 4), "nats": round(float(nats), 4)}


@torch.no_grad()
def answer_figures(network: TrainableLlama) -> dict[str, float]:
    """Recall of the values of an answer, each behind the right ones, and its nats a token."""
    rng = np.random.default_rng(10**6)
    pairs = [question(rng) for _ in range(TESTED)]
    rows = torch.tensor([[*asked, *answer] for asked, answer in pairs])
    begun = len(pairs[0][0])
    logp = network(rows)[:, begun - 1 : begun - 1 + ASKED].log_softmax(-1)
    wanted = rows[:, begun : begun + ASKED]
    nats = -logp.gather(-1, wanted[..., None]).mean()
    recall = (logp.argmax(-1) == wanted).float().mean()
    return {"recall": round(float(recall), 4), "nats": round(float(nats), 4)}


def answer_loss(
    network: TrainableLlama, objective: AnswerObjective
) -> Callable[[np.random.Generator], Tensor]:
    """The loss of a step on questions and answers."""

    def step_loss(rng: np.random.Generator) -> Tensor:
        pairs = [question(rng) for _ in range(ROWS)]
        return mean_row_loss(
            network, [row for pair in pairs for row in objective.learned_rows(*pair, IDS, rng)]
        )

    return step_loss


def seed_rows(seed: int, counts: Sequence[int], tuned: int) -> list[dict[str, Any]]:
    """All runs of a seed: pages with and without holes at each number of steps, then answers."""
    rows = list[dict[str, Any]]()

    def note(form: str, mask: float, steps: int, took: float, figures: dict[str, float]) -> None:
        about = {"form": form, "mask": mask, "steps": steps, "seed": seed}
        rows.append({**about, **figures, "seconds": took})
        print(rows[-1], flush=True)

    start = None
    for mask in (0.0, 0.15):
        objective = MeapObjective(mask)
        for steps in counts:
            network = TrainableLlama(SHAPE, seed=seed)
            took = run(
                network,
                steps,
                lambda rng: objective.batch_loss(network, page_rows(rng, ROWS), IDS, rng),  # noqa: B023
                seed,
            )
            note("pages", mask, steps, took, page_figures(network))
            start = start or deepcopy(network)
    assert start is not None
    for mask in (0.0, 0.1, 0.5):
        network = deepcopy(start)
        objective = MeapAnswers(mask, 0) if mask else AnswerTokens()
        took = run(network, tuned, answer_loss(network, objective), seed)
        note("answers", mask, tuned, took, answer_figures(network))
    return rows


def main() -> None:
    """One line a run, a file of all, and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv")
    parser.add_argument("--pages", default="500,1000", help="steps of the runs on pages")
    parser.add_argument("--answers", type=int, default=300, help="steps of the runs on answers")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    counts = [int(x) for x in asked.pages.split(",")]
    rows = [
        row
        for seed in map(int, asked.seeds.split(","))
        for row in seed_rows(seed, counts, asked.answers)
    ]
    if asked.csv:
        write_csv(asked.csv, rows)
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault((row["form"], row["mask"], row["steps"]), []).append(row["recall"])
    for key, values in groups.items():
        print(*key, mean_with_interval(values) if len(values) > 1 else values[0], flush=True)


if __name__ == "__main__":
    main()
