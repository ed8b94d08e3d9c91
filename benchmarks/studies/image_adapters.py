"""Two adapters by modality against one of equal rank, with a ladder of queries and without: three seeds.

    python -m benchmarks.studies.image_adapters --out DIR [--model zoo:vision] [--rank 16] [--steps 120] [--rows 8]

A seed draws the scenes, the adapters and the held-out scenes; all four forms learn from the same ones. Printed are, on held-out
scenes, nats a token of right answers and the share of answers that are right (the mean of eight kinds), the same of the model
as it is, and by how much two adapters differ from one: means with Student's 95 % interval. Runs that are there are not made
again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from benchmarks.studies.intervals import mean_with_interval

from polydec.lab.train.arcana import (
    ArcanaStudent,
    scene_token_ids,
    train_arcana,
)
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.specs.arcana import ArcanaSpec
from polydec.lab.train.vision import JUDGED, draw_example, measure_answers
from polydec.models.formats.llava import read_llava
from polydec.models.sessions.sources import open_source

FORMS = {
    "two adapters": {"queries": 0},
    "one of equal rank": {"queries": 0, "apart": False},
    "two adapters, ladder": {},
    "one of equal rank, ladder": {"apart": False},
}


def measure_model(name: str, seed: int) -> tuple[float, float]:
    """Nats and right answers of a model as it is, on the held-out scenes of a seed."""
    source = open_source(name)
    ids = scene_token_ids(source, name)
    parted = read_llava(source.config, source.weights, source.processor)
    student = ArcanaStudent(parted, ArcanaSpec("", name, queries=0)).eval()
    rng = np.random.default_rng([seed, 32])
    unseen = [draw_example(rng, unseen=True) for _ in range(JUDGED)]
    rights, nats = measure_answers(student, unseen, ids)
    return nats, fmean(rights.values())


def main() -> None:
    """A line a seed and form, and the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:vision")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=8, help="scenes of a step")
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    told = dict[str, list[tuple[float, float]]]()
    for seed in map(int, asked.seeds.split(",")):
        told.setdefault("as it is", []).append(measure_model(asked.model, seed))
        for form, how in FORMS.items():
            where = asked.out / f"seed-{seed}" / form.replace(" ", "-").replace(",", "")
            if not (where / RESULT).exists():
                sizes = {"rank": asked.rank, "steps": asked.steps, "rows": asked.rows}
                train_arcana(ArcanaSpec(str(where), asked.model, seed=seed, **sizes, **how))
            made = json.loads((where / RESULT).read_text())
            right = fmean(made["held_out_right"].values())
            told.setdefault(form, []).append((made["held_out_nats"], right))
            print(seed, form, made["parameters"], made["held_out_nats"], made["held_out_right"])
    for form, pairs in told.items():
        print(f"{form}: nats {_told([x for x, _ in pairs])}, right {_told([x for _, x in pairs])}")
    for behind in ("", ", ladder"):
        both = told[f"two adapters{behind}"], told[f"one of equal rank{behind}"]
        less = [[a[i] - b[i] for a, b in zip(*both, strict=True)] for i in range(2)]
        print(f"two less one{behind}: nats {_told(less[0])}, right {_told(less[1])}")


def _told(values: list[float]) -> str:
    return str(mean_with_interval(values) if len(values) > 1 else round(values[0], 4))


if __name__ == "__main__":
    main()
