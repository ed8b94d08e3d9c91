"""Answers in triplets (REF-VLM), free and under the grammar: which can be read, and how well boxes and masks fit.

    python -m benchmarks.studies.triplets --models DIR --csv lab/reports/triplets.csv [--steps 300] [--rows 8]
        [--seeds 0 1 2] [--count 16]

For each seed a model is trained further from `zoo:vision` by `polydec train ref-vlm`; DIR keeps it, and a model that is there
is not trained again. On scenes that no training saw, which the seed draws, all five kinds of questions are answered, greedily
and at temperature 1, without a constraint and under `triplets=box,mask` with `finish`, and greedily with up to 16 drafted
tokens where the grammar leaves no choice. Columns: failures: answers that cannot be read as a plan with what it plans; texts:
answers of which every word is right; box, mask: mean intersection over union with the square or the patches of the right thing,
reference by reference (one that is missing, or has another unit, counts 0); states: states for each reference that is right;
passes: of the model, a token of an answer. A row is a way and a seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.image_presses import file_of_pixels
from benchmarks.studies.intervals import mean_with_interval

from polydec import Ask, Engine, Image, Sampling, load
from polydec.api import Completion, LoadedModel
from polydec.base.errors import RequestError
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.ref_vlm import (
    TripletExample,
    box_overlaps,
    draw_triplet_example,
    train_ref_vlm,
)
from polydec.lab.train.scene_masks import patch_mask
from polydec.lab.train.scene_triplets import TripletQuestion, part_box, shown_answer
from polydec.lab.train.scenes import SIDE
from polydec.lab.train.specs.ref_vlm import RefVlmSpec
from polydec.lab.train.vision import PATCH
from polydec.laws.constraints.triplets import TripletGrammar, read_triplets

SEEDS = (0, 1, 2)
FIGURES = ("failures", "texts", "box", "mask", "states", "passes")


@dataclass(frozen=True)
class TripletWay:
    """A way to answer.

    Attributes:
        name: In the table.
        held: Whether the grammar holds the answer.
        temperature: Of the sampling.
        depth: Tokens that are drafted where nothing else may come.
    """

    name: str
    held: bool
    temperature: float
    depth: int = 0

    def ask_question(self, example: TripletExample, question: TripletQuestion, seed: int) -> Ask:
        """The question about its picture."""
        return Ask(
            question.question.asked,
            source=Image(file_of_pixels(example.example.pixels)),
            method="ref-vlm",
            options={"depth": self.depth},
            constraint=TripletGrammar(("box", "mask")) if self.held else None,
            finish=self.held,
            sampling=Sampling(temperature=self.temperature),
            max_tokens=160,
            seed=seed,
        )


WAYS = (
    TripletWay("free, greedy", False, 0.0),
    TripletWay("grammar, greedy", True, 0.0),
    TripletWay("grammar, greedy, drafted", True, 0.0, 16),
    TripletWay("free, sampled", False, 1.0),
    TripletWay("grammar, sampled", True, 1.0),
)


def trained_model(models: Path, seed: int, how: dict[str, Any]) -> LoadedModel:
    """The model of a seed, which is trained unless it is there."""
    at = models / f"seed-{seed}"
    if not (at / RESULT).exists():
        train_ref_vlm(RefVlmSpec(str(at), seed=seed, **how))
    return load(str(at), draft=None, threads=1, trained=[str(at / "units")])


def can_be_read(done: Completion) -> bool:
    """Whether an answer came to its end and holds what it plans."""
    try:
        read_triplets(done.text)
    except RequestError:
        return False
    return done.finish_reason == "stop"


def overlaps_of(done: Completion, question: TripletQuestion) -> dict[str, list[float]]:
    """By unit how well each reference fits the thing that is right."""
    masks = {mask.place: mask for mask in done.image_masks}
    out: dict[str, list[float]] = {"box": [], "mask": []}
    for at, (unit, part) in enumerate(question.reference_targets):
        share = 0.0
        made = done.reference_states[at] if at < len(done.reference_states) else None
        if made is not None and made.box is not None and unit == "box":
            right_R4 = SIDE * torch.tensor([part_box(part)])
            share = float(box_overlaps(torch.tensor([made.box]), right_R4)[0])
        elif made is not None and made.place in masks and unit == "mask":
            cells = masks[made.place].logit_HW.numpy() > 0
            right = patch_mask((part,), PATCH)
            share = float((cells & right).sum() / (cells | right).sum())
        out[unit].append(share)
    return out


def measure_way(
    lm: LoadedModel, way: TripletWay, examples: Sequence[TripletExample], seed: int
) -> dict[str, Any]:
    """The figures of a way."""
    asked = [(x, question) for x in examples for question in x.questions]
    engine = Engine(lm)
    tickets = [engine.submit(way.ask_question(x, q, seed + at)) for at, (x, q) in enumerate(asked)]
    answers = engine.run(tickets)
    found: dict[str, list[float]] = {"box": [], "mask": []}
    for (_, question), done in zip(asked, answers, strict=True):
        for unit, shares in overlaps_of(done, question).items():
            found[unit] += shares
    texts = [
        done.text == shown_answer(question.question.answer)
        for (_, question), done in zip(asked, answers, strict=True)
    ]
    states = sum(len(done.reference_states) for done in answers)
    right = sum(len(question.reference_targets) for _, question in asked)
    passes = [1 / done.metrics["tokens_per_pass"] for done in answers]
    figures = {
        "failures": 1 - float(np.mean([can_be_read(done) for done in answers])),
        "texts": float(np.mean(texts)),
        **{unit: float(np.mean(shares)) for unit, shares in found.items()},
        "states": states / right,
        "passes": float(np.mean(passes)),
    }
    return {
        "way": way.name,
        "seed": seed,
        "answers": len(answers),
        **{name: round(figures[name], 4) for name in FIGURES},
    }


def summed_up(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of each way the means over seeds, with Student's 95 % interval."""
    lines = list[str]()
    for name in FIGURES:
        for way in WAYS:
            own = [row[name] for row in rows if row["way"] == way.name]
            shown = mean_with_interval(own) if len(own) > 1 else str(own)
            lines.append(f"{name}, {way.name}: {shown}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--count", type=int, default=16, help="scenes a seed")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=8, help="scenes of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[dict[str, Any]]()
    for seed in given.seeds:
        lm = trained_model(given.models, seed, {"steps": given.steps, "rows": given.rows})
        rng = np.random.default_rng([9179, seed])
        examples = [draw_triplet_example(rng, unseen=True) for _ in range(given.count)]
        for way in WAYS:
            rows.append(measure_way(lm, way, examples, seed))
            print(rows[-1], flush=True)
        merge_csv(given.csv, rows, ("way", "seed"))
    print("\n".join(summed_up(rows)))


if __name__ == "__main__":
    main()
