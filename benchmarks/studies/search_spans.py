"""Superlinear attention: keys looked up in a text of sections, three seeds, and what a token costs behind long texts.

    python -m benchmarks.studies.search_spans --csv lab/reports/superlinear.csv
    python -m benchmarks.studies.search_spans --times lab/reports/superlinear-times.csv

A page is sections of 32 tokens in any order, each about a topic of its own: words of the topic, and eight records among them,
one for each of its keys. A record is one token, which says a key and its value. Behind the page half of all keys are asked
for, each with its value behind it, and only these values are learned. Any token of a section tells its topic, so an anchor
may be found by it. A dense model is trained (pages of two sections first, then of eight); then it goes on as it is, or with
spans of the published rule and a window of three keys, its own queries as the first search (`train lm --start DIR
--superlinear 3`). Recall: how often the value is the likeliest token, on pages of other draws, before and after these further
steps; by chance 1 in 8. Arms: `dense`; `3 spans` and `1 span`, scores of anchors divided by the root of a head's size;
`published scale`, which does not divide them; `drawn search`, whose queries that search are drawn anew and learn nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import merge_csv, write_csv
from benchmarks.studies.intervals import mean_with_interval
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import ScoreRequest
from polydec.lab.train.exits import copy_with_search
from polydec.lab.train.loop import LossCurvePoint, fit_network
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.models.formats.superlinear import SuperlinearRule
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer

SEEDS = (0, 1, 2)
BEGIN = 0
SECTIONS, KEYS, WORDS, VALUES = 8, 8, 8, 8
LENGTH = 32
FIRST_VALUE = 1
FIRST_WORD = FIRST_VALUE + VALUES
FIRST_KEY = FIRST_WORD + SECTIONS * WORDS
FIRST_RECORD = FIRST_KEY + SECTIONS * KEYS
VOCAB = FIRST_RECORD + SECTIONS * KEYS * VALUES
SHAPE = LlamaShape(VOCAB, width=64, layers=2, heads=2, kv_heads=2, inner=128, context=512)
ROWS = 8
TESTED = 256
STEPS = 600
SHORT = 0.7
TUNED = 150
SCALED = SHAPE.head**-0.5
ARMS: Mapping[str, SuperlinearRule | None] = {
    "dense": None,
    "3 spans": SuperlinearRule(3, near=1, search_scale=SCALED),
    "1 span": SuperlinearRule(1, near=1, search_scale=SCALED),
    "3 spans, published scale": SuperlinearRule(3, near=1),
    "3 spans, drawn search": SuperlinearRule(3, near=1, search_scale=SCALED),
}
DRAWN = "3 spans, drawn search"
"""The arm whose search is drawn and not trained."""


def page_row(rng: np.random.Generator, sections: int = SECTIONS) -> list[int]:
    """A page of so many sections with the keys that are asked for behind it, half of all, each with its value."""
    value = rng.integers(VALUES, size=SECTIONS * KEYS)
    page = [BEGIN]
    topics = rng.permutation(SECTIONS)[:sections]
    for topic in topics:
        records = [
            FIRST_RECORD + k * VALUES + value[k] for k in range(topic * KEYS, (topic + 1) * KEYS)
        ]
        words = FIRST_WORD + topic * WORDS + rng.integers(WORDS, size=LENGTH - KEYS)
        page += rng.permutation([*records, *words]).tolist()
    known = np.concatenate([np.arange(t * KEYS, (t + 1) * KEYS) for t in topics])
    asked = rng.permutation(known)[: len(known) // 2]
    return [*page, *(int(x) for k in asked for x in (FIRST_KEY + k, FIRST_VALUE + value[k]))]


def page_rows(rng: np.random.Generator, count: int, sections: int = SECTIONS) -> Tensor:
    """So many pages, shape ``[count, T]``."""
    return torch.tensor([page_row(rng, sections) for _ in range(count)])


def asked_places(rows: Tensor) -> Tensor:
    """Where the keys that are asked for stand: of every section half of its keys, and a value behind each."""
    asked = (rows.shape[1] - 1) // (LENGTH + KEYS) * KEYS // 2
    return torch.arange(rows.shape[1] - 2 * asked, rows.shape[1], 2)


def value_loss(network: TrainableLlama, rows: Tensor) -> Tensor:
    """Nats of the values that are asked for."""
    at = asked_places(rows)
    return F.cross_entropy(network(rows)[:, at].flatten(0, 1), rows[:, at + 1].flatten())


def learn_pages(network: TrainableLlama, seed: int, first: int, steps: int, short: int) -> None:
    """Train in place.

    Args:
        network: What is trained.
        seed: Seed of the pages.
        first: Number of the first step, so that no page comes twice.
        steps: Steps.
        short: How many of them have short pages: what a key means is learned there, and then where to look for it.
    """

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng([seed, first + step])
        rows = page_rows(rng, 4 * ROWS, 2) if step < short else page_rows(rng, ROWS)
        return value_loss(network, rows), rows.numel()

    schedule = TrainingSchedule(steps, 3e-3, muon=0.02, log_every=25)

    def show_point(point: LossCurvePoint) -> None:
        """One line for each point of the curve."""
        print(point.step, round(point.loss, 3), flush=True)

    fit_network(network, step_loss, schedule, watch=show_point)


@torch.no_grad()
def begun_network(start: TrainableLlama, arm: str, seed: int) -> TrainableLlama:
    """A copy of a dense model for an arm."""
    rule = ARMS[arm]
    if rule is None:
        return deepcopy(start)
    network = copy_with_search(start, rule)
    if arm == DRAWN:
        generator = torch.Generator().manual_seed(seed)
        for name, p in network.named_parameters():
            if "search_proj" in name:
                p.requires_grad_(False)
                p.copy_(torch.randn(p.shape, generator=generator) * p.shape[1] ** -0.5)
    return network


@torch.no_grad()
def recall_of(network: TrainableLlama) -> float:
    """The share of asked values that are the likeliest token."""
    rng = np.random.default_rng(10**6)
    right = 0.0
    for _ in range(TESTED // ROWS):
        rows = page_rows(rng, ROWS)
        at = asked_places(rows)
        right += float((network(rows)[:, at].argmax(-1) == rows[:, at + 1]).float().sum())
    return right / (TESTED * SECTIONS * KEYS // 2)


def recall_rows(arms: Sequence[str], seed: int, steps: int, tuned: int) -> list[dict[str, Any]]:
    """One row an arm of a seed."""
    start = TrainableLlama(SHAPE, seed=seed)
    learn_pages(start, seed, 0, steps, int(steps * SHORT))
    length = len(page_row(np.random.default_rng(0)))
    rows = list[dict[str, Any]]()
    for arm in arms:
        network = begun_network(start, arm, seed)
        begun = recall_of(network)
        began = time.perf_counter()
        learn_pages(network, seed, steps, tuned, 0)
        rule = ARMS[arm]
        read = length if rule is None else rule.keys_read(length - 1)
        rows.append({"arm": arm, "seed": seed, "length": length, "keys read": read})
        rows[-1] |= {"begun": round(begun, 4), "recall": round(recall_of(network), 4)}
        rows[-1] |= {"seconds": round(time.perf_counter() - began)}
        print(rows[-1], flush=True)
    return rows


def passes_at(rule: SuperlinearRule | None, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Milliseconds of a token behind texts of these lengths, the least of nine passes of a network of random weights."""
    shape = replace(SHAPE, width=256, heads=8, kv_heads=2, layers=4, inner=512)
    shape = replace(shape, context=max(lengths) + 64, superlinear=rule)
    net = LlamaTransformer.build(
        shape.config_content(), TrainableLlama(shape).state_dict(), dtype="float32"
    )
    rows = list[dict[str, Any]]()
    for length in lengths:
        cache = net.new_cache()
        # What the keys are does not matter for the time: they are drawn, not computed.
        entries = torch.randn(*cache.kv.shape[:-2], length, cache.kv.shape[-1])
        cache.append_entries(entries)
        took = list[float]()
        for _ in range(10):
            first = cache.stage_slots((-1,))
            began = time.perf_counter()
            net.forward([NetworkQuery(cache, first, (5,), (0,), ScoreRequest())])
            took.append(time.perf_counter() - began)
            cache.truncate_entries(length)
        read = length + 1 if rule is None else rule.keys_read(length)
        ms = round(1000 * float(min(took[1:])), 3)
        rows.append({"arm": "dense" if rule is None else f"{rule.spans} spans", "length": length})
        rows[-1] |= {"keys read": read, "ms": ms}
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """One line a run, a file of all, and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv")
    parser.add_argument("--times", help="measure a token behind long texts, and write this file")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--tuned", type=int, default=TUNED, help="further steps of each arm")
    parser.add_argument("--arms", default=";".join(ARMS), help="names with ; between them")
    parser.add_argument("--lengths", default="1000,4000,16000,64000,256000")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.times:
        lengths = [int(n) for n in asked.lengths.split(",")]
        write_csv(
            asked.times,
            [r for arm in ("dense", "3 spans") for r in passes_at(ARMS[arm], lengths)],
        )
        return
    arms = asked.arms.split(";")
    rows = list[dict[str, Any]]()
    for seed in asked.seeds.split(","):
        rows += recall_rows(arms, int(seed), asked.steps, asked.tuned)
        if asked.csv:
            merge_csv(asked.csv, rows, ("arm", "seed"))
    for arm in arms:
        of = [row for row in rows if row["arm"] == arm]
        figures = [[row[name] for row in of] for name in ("begun", "recall")]
        print(arm, *(mean_with_interval(f) if len(f) > 1 else f[0] for f in figures), flush=True)


if __name__ == "__main__":
    main()
