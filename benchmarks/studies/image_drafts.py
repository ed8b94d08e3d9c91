"""MSD's drafters of a model that reads images: tokens a pass, three seeds.

    python -m benchmarks.studies.image_drafts --model DIR --out DIR [--each 60] [--steps 600] [--seeds 0,1,2]

For `DIR` of `polydec train vision`. A seed draws scenes, answers and weights; three drafters learn from the model's own
answers: one that reads images as vectors alone (decoupled), one that reads them as words (shared), both first without images
and then with them, and a decoupled one that sees both all the time (half and half). Measured on held-out scenes, greedy, by
trees of 16 nodes and five levels: captions with their image, the same question without one, and short questions with their
image. Printed are all figures, and means with Student's 95 % interval.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from benchmarks.studies.intervals import mean_with_interval

from polydec import load
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.image_drafting import WIDTH, tokens_per_pass
from polydec.lab.train.image_questions import (
    ImageQuestion,
    answer_questions,
    draw_scene_questions,
)
from polydec.lab.train.msd import train_msd
from polydec.lab.train.scenes import CAPTION
from polydec.lab.train.specs.msd import MsdSpec
from polydec.methods.speculative.drafters.msd import MsdDrafter
from polydec.methods.speculative.trees.best_first import BestFirstTree
from polydec.models.learned.artefacts import load_artefact
from polydec.request.loaded import LoadedModel

VARIANTS = {
    "decoupled": {},
    "shared": {"decoupled": False},
    "half and half": {"staged": False},
}
NODES = 16
UNSEEN = 1_000
"""Added to the seed of the training for the scenes that measure."""


def measured_sorts(scenes: int, seed: int) -> dict[str, list[ImageQuestion]]:
    """What is asked of held-out scenes, by sort."""
    asked = draw_scene_questions(scenes, seed + UNSEEN, unseen=True)
    seen = [q for q in asked if q.image is not None]
    return {
        "captions": [q for q in seen if q.prompt == CAPTION],
        # All are one question: one is enough.
        "without an image": [ImageQuestion(CAPTION)],
        "short questions": [q for q in seen if q.prompt != CAPTION][: 2 * scenes],
    }


def measure_drafter(lm: LoadedModel, path: Path, scenes: int, seed: int) -> dict[str, float]:
    """Tokens a pass of a drafter on each sort."""
    drafter = MsdDrafter(load_artefact(str(path)), BestFirstTree(WIDTH))
    out = dict[str, float]()
    for sort, asked in measured_sorts(scenes, seed).items():
        answered = answer_questions(lm, asked, max_tokens=48, temperature=0.0, seed=0)
        out[sort] = tokens_per_pass(answered, drafter, NODES, 48)
    return out


def main() -> None:
    """A line a seed and drafter, and the means."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each", type=int, default=60, help="scenes that are learned from")
    parser.add_argument("--scenes", type=int, default=60, help="held-out scenes")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lm = load(asked.model, draft=None, threads=1)
    told = dict[tuple[str, str], list[float]]()
    for seed in map(int, asked.seeds.split(",")):
        for name, how in VARIANTS.items():
            where = asked.out / f"seed-{seed}" / name.replace(" ", "-")
            # A study that was interrupted goes on with the drafter behind this one.
            if not (where / RESULT).exists():
                spec = MsdSpec(
                    str(where), asked.model, each=asked.each, steps=asked.steps, seed=seed, **how
                )
                train_msd(spec)
            figures = measure_drafter(lm, where, asked.scenes, seed)
            print(seed, name, figures, flush=True)
            for sort, value in figures.items():
                told.setdefault((name, sort), []).append(value)
    for (name, sort), values in told.items():
        mean = mean_with_interval(values) if len(values) > 1 else round(values[0], 3)
        print(name, sort, mean, flush=True)


if __name__ == "__main__":
    main()
