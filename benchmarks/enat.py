"""ENAT's networks on pictures of digits: how many of eight layers should be the encoder's, at equal time.

    python benchmarks/enat.py --images FOLDER --out DIR --csv FILE [--seconds 100] [--seeds 0 1 2] [--only NAME ...]

Networks of equal depth and width are trained for equal processor time: the time of a step is measured first, in turns, and says
how many steps each takes (DIR/steps.json). They are decoded in equal time as well: 6+2 in 5, 10 and 20 passes and 4+4 in 9 and
18 take about as long as 2+6 in 4, 8 and 16. Each seed is a training of its own, kept in DIR; a run that is stopped goes on
where it was. --train stops there; --measure measures what is there.

nats: of a token under zoo:digits, in its tiles; distance: Fréchet's between drawn and learned pictures, as in
benchmarks/digits.py; cpu: milliseconds of the process a picture, all of a class at a time; ratio: that over ENAT's 6+2 in 8
passes of the same seed, the median over classes, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from csv_rows import merge_csv
from digits import WORDS, feature_map, frechet, nats, sheet

import polydec
from polydec import Ask, Engine
from polydec.lab.train.loop import build_optimisers
from polydec.lab.train.picture_data import read_pictures
from polydec.lab.train.pictures import (
    PictureCourse,
    make_picture_rows,
    picture_course,
    train_pictures,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.models.text.tile_search import tokens_of_pixels

SIZES = {"side": 7, "patch": 4, "colours": 128, "width": 96}
TURNS = 5
PROBED = 10
"""The time of a step is the mean over so many, in so many turns; the first turn is left out."""


@dataclass(frozen=True)
class TrainedSplit:
    """A network that is trained.

    Attributes:
        name: Of its rows.
        options: Of its training.
        ways: Method and options that it is decoded with, by the end of a row's name.
    """

    name: str
    options: Mapping[str, Any]
    ways: Mapping[str, tuple[str, Mapping[str, Any]]]


def enat_ways(*passes: int, **more: Any) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """ENAT in some numbers of passes."""
    return {f"{n} passes": ("enat", {"steps": n, **more}) for n in passes}


SPLITS = (
    TrainedSplit(
        "6+2",
        {"encoder": 6, "layers": 2},
        {
            **enat_ways(4, 5, 8, 10, 16, 20),
            "8 passes, no reuse": ("enat", {"steps": 8, "reuse": False}),
        },
    ),
    TrainedSplit("4+4", {"encoder": 4, "layers": 4}, enat_ways(4, 8, 9, 16, 18)),
    TrainedSplit("2+6", {"encoder": 2, "layers": 6}, enat_ways(4, 8, 16)),
    TrainedSplit(
        "6+2, reuse not learned", {"encoder": 6, "layers": 2, "reused": 0.0}, enat_ways(8)
    ),
    TrainedSplit(
        "8 uniform layers",
        {"layers": 8},
        {
            **{f"{n} passes": ("maskgit", {"steps": n, "noise": 1.5}) for n in (4, 8, 16)},
            "16 passes, recap": ("recap", {"steps": 16, "before": 4, "noise": 1.5}),
        },
    ),
)
JUDGE = "zoo:digits"
JUDGE_WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("plain", {}),
    "speculative-jacobi": ("speculative-jacobi", {"window": 16}),
}
BASE = "6+2, 8 passes"
"""The row that times are compared with."""


def steps_for_time(images: str, out: Path, seconds: float) -> dict[str, int]:
    """How many steps each network takes in some seconds of the process, measured once and kept."""
    at = out / "steps.json"
    if at.exists():
        return json.loads(at.read_text("utf-8"))
    specs = {split.name: picture_spec(out, images, split, 0, 1) for split in SPLITS}
    given = read_pictures(images, SIZES["side"] * SIZES["patch"], WORDS)
    rows = make_picture_rows(given, specs[SPLITS[0].name])
    courses = {name: picture_course(spec, rows) for name, spec in specs.items()}
    spent: dict[str, list[float]] = {name: [] for name in courses}
    for turn in range(TURNS):
        for name, course in courses.items():
            spent[name].append(seconds_of_steps(course, rows.learned[:32], turn))
    # The share of gaps is drawn for a whole step, so times of steps differ: their mean counts.
    found = {name: round(seconds / fmean(some[1:])) for name, some in spent.items()}
    at.write_text(json.dumps(found), "utf-8")
    return found


def seconds_of_steps(course: PictureCourse, row_BT: torch.Tensor, turn: int) -> float:
    """Seconds of the process that a step takes, the mean over some of them."""
    optimisers = build_optimisers(course.trained, TrainingSchedule(1, 1e-9, muon=1e-9), course.deep)
    # Every network gets the same shares of gaps.
    rng = torch.Generator().manual_seed(turn)
    began = time.process_time()
    for _ in range(PROBED):
        for one in optimisers:
            one.zero_grad(set_to_none=True)
        course.loss(row_BT, rng).backward()
        for one in optimisers:
            one.step()
        course.after_step()
    return (time.process_time() - began) / PROBED


def picture_spec(
    out: Path, images: str, split: TrainedSplit, seed: int, steps: int
) -> PicturesSpec:
    """What trains a network."""
    return PicturesSpec(
        str(out),
        images,
        classes=WORDS,
        masked=True,
        seed=seed,
        steps=steps,
        save_every=100,
        **SIZES,
        **split.options,
    )


def trained_split(out: Path, images: str, split: TrainedSplit, seed: int, steps: int) -> Path:
    """The directory of a network, which is trained now where it is not there."""
    folder = out / f"{split.name} {seed}"
    if not (folder / "training.json").exists():
        began = time.process_time()
        said = train_pictures(picture_spec(folder, images, split, seed, steps))
        took = round(time.process_time() - began, 1)
        print(folder.name, {k: v for k, v in said.items() if k != "curve"}, took, flush=True)
    return folder


@dataclass(frozen=True, eq=False)
class PictureJudges:
    """Two judges of drawn pictures.

    Attributes:
        likely: A model that draws token by token.
        features: What is compared of pictures.
        true: Of pictures that were learned from.
    """

    likely: polydec.LoadedModel
    features: Callable[[np.ndarray], torch.Tensor]
    true: torch.Tensor

    def judged(self, words: Sequence[str], pixels: np.ndarray) -> dict[str, float]:
        """Nats of a token, and distance, of pictures of some classes."""
        view = self.likely.checkpoint.view
        assert view is not None
        ids = tokens_of_pixels(pixels, view.tiles).tolist()
        rows = [(self.likely.encode(word)[0], tuple(row)) for word, row in zip(words, ids)]
        return {
            "nats": round(nats(self.likely, rows), 4),
            "distance": round(frechet(self.features(pixels), self.true), 4),
        }


@dataclass(eq=False)
class DrawnRow:
    """One way to decode one network, and what it has drawn so far."""

    name: str
    lm: polydec.LoadedModel
    method: str
    options: Mapping[str, Any]
    words: list[str] = field(default_factory=list[str])
    pixels: list[np.ndarray] = field(default_factory=list[np.ndarray])
    seconds: list[float] = field(default_factory=list[float])
    fed: int = 0

    def draw_class(self, word: str, each: int, seed: int) -> None:
        """Draw some pictures of a class, and keep them and their time."""
        engine = Engine(self.lm)
        ask = Ask(word, method=self.method, options=self.options, n=each, seed=seed)
        began = time.process_time()
        (answer,) = engine.run([engine.submit(ask)])
        self.seconds.append((time.process_time() - began) / each)
        self.fed += answer.metrics["positions_fed"]
        self.words += [word] * each
        self.pixels += [c.picture.pixels for c in answer.choices]


def measured_rows(
    loaded: Mapping[str, polydec.LoadedModel],
    judges: PictureJudges,
    seed: int,
    each: int,
    sheet_file: Path | None,
) -> list[dict[str, Any]]:
    """Rows of the networks of one seed, which take turns class by class; a sheet of them is kept."""
    rows = [
        DrawnRow(f"{split.name}, {end}", loaded[split.name], *way)
        for split in SPLITS
        if split.name in loaded
        for end, way in split.ways.items()
    ]
    rows += [DrawnRow(f"{JUDGE}, {end}", judges.likely, *way) for end, way in JUDGE_WAYS.items()]
    for row in rows:
        # What is built in a first request is no part of its time.
        polydec.generate(row.lm, WORDS[0], method=row.method, options=row.options)
    for at, word in enumerate(WORDS):
        for row in rows:
            row.draw_class(word, each, 1000 * seed + at)
    base = next((row for row in rows if row.name == BASE), rows[0]).seconds
    if sheet_file is not None:
        shown = [[row.pixels[at * each + i] for at in range(10) for i in (0, 1)] for row in rows]
        sheet(shown, sheet_file)
    return [
        {
            "name": row.name,
            "seed": seed,
            "pictures": len(row.pixels),
            "fed": round(row.fed / len(row.pixels), 1),
            "cpu": round(1000 * median(row.seconds), 2),
            "ratio": round(median(a / b for a, b in zip(row.seconds, base)), 3),
            **judges.judged(row.words, np.stack(row.pixels)),
        }
        for row in rows
    ]


def main() -> None:
    """Train, draw, judge, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--each", type=int, default=34)
    parser.add_argument("--only", nargs="+", help="names of networks; all without")
    parser.add_argument("--sheet", type=Path, help="a picture of two of each class of each row")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--measure", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    splits = [split for split in SPLITS if asked.only is None or split.name in asked.only]
    if not asked.measure:
        steps = steps_for_time(asked.images, asked.out, asked.seconds)
        print(steps, flush=True)
        for seed in asked.seeds:
            for split in splits:
                trained_split(asked.out, asked.images, split, seed, steps[split.name])
    if asked.train:
        return
    given = read_pictures(asked.images, SIZES["side"] * SIZES["patch"], WORDS)
    learned = given.pixels[given.is_learned()]
    features = feature_map(learned)
    judges = PictureJudges(polydec.load(JUDGE, threads=1), features, features(learned))
    for seed in asked.seeds:
        loaded = {
            split.name: polydec.load(str(at), draft=None, threads=1)
            for split in splits
            if ((at := asked.out / f"{split.name} {seed}") / "training.json").exists()
        }
        rows = measured_rows(loaded, judges, seed, asked.each, asked.sheet)
        for row in rows:
            print(row, flush=True)
        merge_csv(asked.csv, rows, ("name", "seed"))


if __name__ == "__main__":
    main()
