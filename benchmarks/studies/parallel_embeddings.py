"""Several embeddings of an input against one, with what they know of one another made small and without: three seeds.

    python -m benchmarks.studies.parallel_embeddings --out DIR [--model zoo:vision] [--paths 3] [--steps 150] [--rows 16]

A seed draws the scenes, the prefixes and the held-out scenes; all forms learn from the same pairs. Printed are, on 64 held-out
pairs of an image with a question and its answer, the share of queries whose nearest answer is right (by the mean over paths, by
all of them one behind another, and by single paths on average), and the cosine of two paths of a query: means with Student's
95 % interval. Runs that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch
from benchmarks.studies.intervals import mean_with_interval

from polydec.lab.train.envelope import RESULT
from polydec.lab.train.parallel_embeddings import train_parallel_embeddings
from polydec.lab.train.specs.parallel_embeddings import ParallelEmbeddingsSpec

FORMS = {
    "one path": {"paths": 1},
    "several, information free": {"information": 0.0},
    "several, information small": {},
}
FIGURES = ("retrieved", "retrieved_joined_long", "retrieved_by_path", "alike", "information")


def main() -> None:
    """A line a seed and form, and the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:vision")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--paths", type=int, default=3)
    parser.add_argument("--information", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rows", type=int, default=16, help="pairs of a step")
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"steps": asked.steps, "rows": asked.rows}
    told = dict[str, list[dict[str, float]]]()
    for seed in map(int, asked.seeds.split(",")):
        for form, how in FORMS.items():
            where = asked.out / f"seed-{seed}" / form.replace(" ", "-").replace(",", "")
            if not (where / RESULT).exists():
                given = {"paths": asked.paths, "information": asked.information, **sizes, **how}
                train_parallel_embeddings(
                    ParallelEmbeddingsSpec(str(where), asked.model, seed=seed, **given)
                )
            made = json.loads((where / RESULT).read_text())
            made["retrieved_by_path"] = fmean(made["retrieved_by_path"])
            told.setdefault(form, []).append({name: made[name] for name in FIGURES})
            print(seed, form, made["seconds"], told[form][-1], flush=True)
    for form, rows in told.items():
        means = ", ".join(f"{name} {_told([row[name] for row in rows])}" for name in FIGURES)
        print(f"{form}: {means}")


def _told(values: list[float]) -> str:
    return str(mean_with_interval(values) if len(values) > 1 else round(values[0], 4))


if __name__ == "__main__":
    main()
