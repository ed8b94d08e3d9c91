"""Masks of things in scenes: all patches in one pass (STAMP), the same without sight of later patches, and a word a patch.

    python -m benchmarks.studies.masks --models DIR --csv lab/reports/masks.csv [--steps 600] [--rows 8]
        [--seeds 0 1 2] [--count 40] [--sheet docs/pictures/masks.png]

For each seed three models are trained further from `zoo:vision` by `polydec train stamp`, with the same steps, scenes and
rates: as published, with causal tokens of masks, and one that writes its masks, a word for each patch. DIR keeps them; a
model that is there is not trained again. On scenes that no training saw, which the seed draws, all four kinds of questions
are answered greedily. Columns: overlap: intersection over union in patches, over all masks that a right answer asks for (one
that is missing counts 0); pixels: the same in pixels of the picture, where logits have been made larger; texts: answers of
which every word is right; passes and milliseconds (processor time, one thread, medians): of an answer with one mask, and of
its mask alone. A row is a way, a seed and a kind of question, or all of them, each alike. `causal when read` is the first
model with causal tokens when it decodes alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.contact_sheet import sheet
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.image_presses import file_of_pixels
from benchmarks.studies.intervals import mean_with_interval

from polydec import Ask, Engine, Image, Sampling, load
from polydec.api import Completion, LoadedModel
from polydec.core.request import ImageMask
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.scene_masks import ASKS, INSIDE, MaskQuestion, patch_mask
from polydec.lab.train.scenes import part_pixels
from polydec.lab.train.specs.stamp import StampSpec
from polydec.lab.train.stamp import MaskExample, draw_mask_example, train_stamp
from polydec.lab.train.vision import PATCH, PATCHES
from polydec.models.text.mask_view import INKS, mask_pixels

SEEDS = (0, 1, 2)
SIDE = int(PATCHES**0.5)
TIMED = 24
"""Questions with one mask that are timed."""


@dataclass(frozen=True)
class MaskWay:
    """A way to make masks.

    Attributes:
        name: In the table.
        model: The training that makes its model, by the fields that differ.
        method: What decodes.
        options: Its options.
    """

    name: str
    model: dict[str, Any]
    method: str
    options: dict[str, Any]

    @property
    def folder(self) -> str:
        """Where its model lies, below the seed's folder."""
        return "-".join(["masks", *self.model])


WAYS = (
    MaskWay("one pass", {}, "stamp", {}),
    MaskWay("causal", {"causal": True}, "stamp", {"causal": True}),
    MaskWay("causal when read", {}, "stamp", {"causal": True}),
    MaskWay("written", {"written": True}, "plain", {}),
)


def trained_model(way: MaskWay, models: Path, seed: int, how: dict[str, int]) -> LoadedModel:
    """The model of a way, which is trained unless it is there."""
    at = models / f"seed-{seed}" / way.folder
    if not (at / RESULT).exists():
        train_stamp(StampSpec(str(at), seed=seed, **how, **way.model))
    heads = [str(at / "head")] if (at / "head").exists() else []
    return load(str(at), draft=None, threads=1, trained=heads)


def examples_of(seed: int, count: int) -> list[MaskExample]:
    """Scenes that no training saw, with what is asked of them."""
    rng = np.random.default_rng([9178, seed])
    return [draw_mask_example(rng, unseen=True) for _ in range(count)]


def asked_masks(way: MaskWay, example: MaskExample, question: MaskQuestion, **more: Any) -> Ask:
    """A question about a picture."""
    fields = {"method": way.method, "options": way.options, **more}
    return Ask(
        question.asked,
        source=Image(file_of_pixels(example.pixels)),
        sampling=Sampling(temperature=0.0),
        max_tokens=240,
        **fields,
    )


def written_masks(words: Sequence[str]) -> list[ImageMask]:
    """The masks that a text holds in words; patches that are missing are outside."""
    out = list[ImageMask]()
    for at, word in enumerate(words):
        if word != ASKS:
            continue
        cells = [1.0 if cell == INSIDE else -1.0 for cell in words[at + 1 : at + 1 + PATCHES]]
        cells += [-1.0] * (PATCHES - len(cells))
        out.append(ImageMask(at, torch.tensor(cells).view(SIDE, SIDE), PATCH))
    return out


def masks_of(way: MaskWay, done: Completion) -> Sequence[ImageMask]:
    """The masks of an answer."""
    return written_masks(done.text.split()) if "written" in way.model else done.image_masks


def share_of_union(made: np.ndarray, right: np.ndarray) -> float:
    """Intersection over union of two masks."""
    return float((made & right).sum() / (made | right).sum())


def measure_way(
    lm: LoadedModel, way: MaskWay, examples: Sequence[MaskExample]
) -> list[dict[str, Any]]:
    """A row for each kind of question."""
    asked = [(x, question) for x in examples for question in x.questions]
    engine = Engine(lm)
    made = engine.run([engine.submit(asked_masks(way, x, q)) for x, q in asked])
    found = dict[str, list[tuple[float, float]]]()
    texts = dict[str, list[bool]]()
    for (_, question), done in zip(asked, made, strict=True):
        want = question.written_answer(PATCH) if "written" in way.model else question.answer
        said = [w for w in done.text.split() if w not in ("yes", "no")]
        texts.setdefault(question.kind, []).append(
            said == [w for w in want.split() if w not in ("yes", "no")]
        )
        masks = masks_of(way, done)
        for at, things in enumerate(question.masks):
            shares = (0.0, 0.0)
            if at < len(masks):
                cells = masks[at].logit_HW.numpy() > 0
                covered = np.logical_or.reduce([part_pixels(part) for part in things])
                shares = (
                    share_of_union(cells, patch_mask(things, PATCH)),
                    share_of_union(mask_pixels(masks[at]).numpy(), covered),
                )
            found.setdefault(question.kind, []).append(shares)
    return [
        {
            "kind": kind,
            "masks": len(shares),
            "overlap": round(float(np.mean([a for a, _ in shares])), 4),
            "pixels": round(float(np.mean([b for _, b in shares])), 4),
            "texts": round(float(np.mean(texts[kind])), 4),
        }
        for kind, shares in found.items()
    ]


def text_alone(way: MaskWay, example: MaskExample, question: MaskQuestion) -> Ask:
    """The same question, whose answer is not followed by what its mask takes."""
    plain = {"method": "plain", "options": {}}
    # A mask that is written is a part of the text, which then ends where it is asked for.
    if "written" in way.model:
        return asked_masks(way, example, question, **plain, stop=(ASKS,))
    return asked_masks(way, example, question, **plain)


def measure_times(
    ways: Sequence[tuple[MaskWay, LoadedModel]], examples: Sequence[MaskExample]
) -> list[dict[str, Any]]:
    """Passes and milliseconds of an answer with one mask and of the mask alone, the ways in turns."""
    asked = [(x, q) for x in examples for q in x.questions if len(q.masks) == 1][:TIMED]
    engines = [Engine(lm) for _, lm in ways]
    columns: list[list[tuple[float, float, int, int]]] = [[] for _ in ways]
    for example, question in asked:
        for (way, _), engine, into in zip(ways, engines, columns, strict=True):
            whole = asked_masks(way, example, question)
            # Once before: the image is read then, and stays.
            engine.run([engine.submit(whole)])
            counts = list[int]()
            times = list[float]()
            for ask in (whole, text_alone(way, example, question)):
                began = time.process_time()
                (done,) = engine.run([engine.submit(ask)])
                times.append(1e3 * (time.process_time() - began))
                counts.append(sum(m["passes"] for m in done.metrics["models"]))
            into.append((times[0], times[0] - times[1], counts[0], counts[0] - counts[1]))
    names = ("milliseconds", "mask_milliseconds", "passes", "mask_passes")
    return [
        {
            name: round(float(np.median(column)), 2)
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        for rows in columns
    ]


NO_TIME = dict.fromkeys(("passes", "milliseconds", "mask_passes", "mask_milliseconds"), "")
EVERY = "every kind"


def measure_seed(models: Path, seed: int, how: dict[str, int], count: int) -> list[dict[str, Any]]:
    """All ways on the same scenes."""
    examples = examples_of(seed, count)
    ways = [(way, trained_model(way, models, seed, how)) for way in WAYS]
    times = measure_times(ways, examples)
    rows = list[dict[str, Any]]()
    for (way, lm), took in zip(ways, times, strict=True):
        kinds = measure_way(lm, way, examples)
        # Each kind counts alike, however many masks it has.
        means = {
            name: round(float(np.mean([row[name] for row in kinds])), 4)
            for name in ("overlap", "pixels", "texts")
        }
        whole = {"kind": EVERY, "masks": sum(row["masks"] for row in kinds), **means, **took}
        for row in (*({**row, **NO_TIME} for row in kinds), whole):
            rows.append({"way": way.name, "seed": seed, **row})
            print(rows[-1], flush=True)
    return rows


def summed_up(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of each way the means over seeds, with Student's 95 % interval, and how far it is from the first."""
    whole = [row for row in rows if row["kind"] == EVERY]

    def of_seeds(way: str, name: str) -> list[float]:
        """A figure of each seed, in order."""
        return [row[name] for row in whole if row["way"] == way]

    lines = list[str]()
    for name in ("overlap", "pixels", "texts", *NO_TIME):
        first = of_seeds(WAYS[0].name, name)
        for way in WAYS:
            own = of_seeds(way.name, name)
            if len(own) < 2:
                lines.append(f"{name}, {way.name}: {own}")
                continue
            apart = [a - b for a, b in zip(own, first, strict=True)]
            lines.append(
                f"{name}, {way.name}: {mean_with_interval(own)}; beside {WAYS[0].name}: {mean_with_interval(apart)}"
            )
    return lines


def inked(picture: np.ndarray, masks: Sequence[np.ndarray]) -> np.ndarray:
    """A picture made pale, with masks in their colours."""
    out = 255 - (255 - picture.astype(float)) * 0.25
    for at, mask in enumerate(masks):
        out[mask] = 0.35 * out[mask] + 0.65 * np.array(INKS[1 + at % (len(INKS) - 1)])
    return out.astype(np.uint8)


def draw_sheet(ways: Sequence[tuple[MaskWay, LoadedModel]], path: Path, seed: int) -> None:
    """Scenes from left to right; from above the picture, the masks that are right, and those of each way."""
    rows: list[list[np.ndarray]] = [[] for _ in range(2 + len(ways))]
    for example in examples_of(seed + 100, 8):
        # The one that asks for each thing by itself.
        question = example.questions[-1]
        right = [
            np.logical_or.reduce([part_pixels(x) for x in things]) for things in question.masks
        ]
        rows[0].append(example.pixels)
        rows[1].append(inked(example.pixels, right))
        for row, (way, lm) in zip(rows[2:], ways, strict=True):
            engine = Engine(lm)
            (done,) = engine.run([engine.submit(asked_masks(way, example, question))])
            row.append(inked(example.pixels, [mask_pixels(x).numpy() for x in masks_of(way, done)]))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet(rows, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--count", type=int, default=40, help="scenes a seed")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=int, default=8, help="scenes of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--sheet", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    how = {"steps": given.steps, "rows": given.rows}
    rows = list[dict[str, Any]]()
    for seed in given.seeds:
        rows += measure_seed(given.models, seed, how, given.count)
        merge_csv(given.csv, rows, ("way", "seed", "kind"))
    print("\n".join(summed_up(rows)))
    if given.sheet:
        seed = given.seeds[0]
        shown = [w for w in WAYS if w.name != "causal when read"]
        ways = [(way, trained_model(way, given.models, seed, how)) for way in shown]
        draw_sheet(ways, given.sheet, seed)


if __name__ == "__main__":
    main()
