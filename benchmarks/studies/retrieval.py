"""Vectors of sentences by Token Prepending and without it: how often a title finds the summary of its own paper.

    python -m benchmarks.studies.retrieval --data summ_scitldr/train_dev.jsonl.gz --csv lab/reports/prepended.csv
        [--model zoo:smollm2] [--pairs 80] [--seeds 3]

Each seed draws pairs of a paper's title and its first one-sentence summary, no pair twice, among those whose title has a SHA-1
of 7 to 9 modulo 10. All are read into vectors, and each title looks for the nearest summary by cosine. A row a way and seed:
the share of titles whose own summary is the nearest (`first`), and the mean of one over its rank (`reciprocal`). Ways differ in
what is read where: the text alone, by its last token or the mean of all; the prompt for one word, behind all layers or five
sixths of them; the same with a placeholder that takes the last token's state before layers 1 to 7 (as published), and before a
single one. `low` and `high`: 95 % of `first`, by drawing titles with replacement.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polydec import load

sys.path.append(str(Path(__file__).parents[1]))
from csv_rows import write_csv

ONE_WORD = 'This sentence : "{text}" means in one word:"'


def ways_to_read(layers: int) -> Mapping[str, Mapping[str, Any]]:
    """By name what `embed` is told. `layers`: of the model; the published model of 32 was read behind layer 27."""
    early = round(layers * 27 / 32)
    return {
        "text, last token": {"pool": "last"},
        "text, mean": {"pool": "mean"},
        "one word": {"template": ONE_WORD},
        "one word, early": {"template": ONE_WORD, "layer": early},
        "prepended": {"prepend_from": 1, "prepend_to": 8},
        "prepended, early": {"prepend_from": 1, "prepend_to": 8, "layer": early},
        "prepended once, early": {"prepend_from": 1, "prepend_to": 2, "layer": early},
    }


def held_out_pairs(path: Path) -> list[tuple[str, str]]:
    """Titles and summaries that nothing is tuned on, in the file's order; a title counts once."""
    found = dict[str, str]()
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            title = str(row["title"] or "")
            kept = int(hashlib.sha1(title.encode()).hexdigest(), 16) % 10 >= 7
            if title and kept and row["target"]:
                found.setdefault(title, row["target"][0])
    return list(found.items())


def ranks_of_own(query_NH: np.ndarray, text_NH: np.ndarray) -> np.ndarray:
    """Of each query which place its own text has among all, 1 for the nearest; texts that are as near stand before it."""
    near_NN = query_NH @ text_NH.T
    return (near_NN >= near_NN.diagonal()[:, None]).sum(1)


def first_interval(rank_N: np.ndarray, draws: int = 2000) -> tuple[float, float]:
    """Of the share of first places, 95 % by drawing queries with replacement."""
    first_N = rank_N == 1
    at = np.random.default_rng(0).integers(len(first_N), size=(draws, len(first_N)))
    low, high = np.quantile(first_N[at].mean(1), (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    """One line of JSON a way and seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv")
    asked = parser.parse_args()
    model = load(asked.model, draft=None, ngrams=None, threads=1)
    pairs = held_out_pairs(asked.data)
    # Shuffled once for all seeds, so that no pair is drawn twice.
    random.Random(0).shuffle(pairs)
    rows = list[dict[str, Any]]()
    for name, how in ways_to_read(model.checkpoint.lm.network.layers).items():
        for seed in range(asked.seeds):
            drawn = pairs[seed * asked.pairs : (seed + 1) * asked.pairs]
            queries, texts = (
                np.asarray(model.embed([pair[side] for pair in drawn], **how)) for side in (0, 1)
            )
            # Vectors have length 1, so a product is a cosine.
            rank_N = ranks_of_own(queries, texts)
            low, high = first_interval(rank_N)
            rows.append(
                {
                    "way": name,
                    "seed": seed,
                    "pairs": len(drawn),
                    "first": round(float((rank_N == 1).mean()), 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "reciprocal": round(float((1 / rank_N).mean()), 4),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if asked.csv:
        write_csv(asked.csv, rows)


if __name__ == "__main__":
    main()
