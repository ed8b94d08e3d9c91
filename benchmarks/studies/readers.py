"""Readers of words in images: CPPD, LISTER and MDiff4STR beside the model that writes letter by letter, and as its drafters.

    python -m benchmarks.studies.readers --out DIR --csv lab/reports/readers.csv [--steps 1200] [--reader-steps 400]
    python -m benchmarks.studies.readers --table lab/reports/readers.csv

Each seed trains a model of `polydec train reader` on drawn words of 3 to 6 letters, and readers that begin with its encoder,
some of which lack a part of their method. All of them read the same held-out words: clean ones, ones of which up to three bars
cover parts, ones of 9 to 12 letters, and ones of 18. What readers draft for the model must be its own greedy text, or the
study fails.

A row of the file: right: share of words that are read right; sure: of all letters those that are read wrongly with a chance
above 0.9; cpu: processor time of a word over plain's, request and image decoding included; ms: that time; letters: written in a
pass of the model.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.csv_rows import merge_csv
from PIL import Image as Pictures

from polydec import Ask, Image, Sampling, generate, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import student_interval
from polydec.lab.train.data import held_out
from polydec.lab.train.reader import train_reader
from polydec.lab.train.reading_losses import (
    PATTERNS,
    WordLoss,
    counting_loss,
    masked_loss,
)
from polydec.lab.train.specs.reader import ReaderSpec
from polydec.lab.train.specs.word_reader import WordReaderSpec
from polydec.lab.train.word_images import ImageFaults, draw_word, draw_word_image
from polydec.lab.train.word_reader import train_word_reader

CLEAN = ImageFaults(blur=0.3, shear=0.2, noise=0.05, bars=0)
COVERED = ImageFaults(blur=0.3, shear=0.2, noise=0.05, bars=3)
SETS: Mapping[str, tuple[int, int, ImageFaults]] = {
    "clean": (3, 6, CLEAN),
    "covered": (3, 6, COVERED),
    "9 to 12 letters": (9, 12, CLEAN),
    "18 letters": (18, 18, CLEAN),
}
LEARNED: Mapping[str, Any] = {
    **{"most": 6, "blur": 0.3, "shear": 0.2, "noise": 0.05, "bars": 1},
    "images": 8192,
}
"""Words and faults of all trainings."""
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class TrainedReading:
    """A reader that is trained, and the ways in which it reads.

    Attributes:
        name: Of its rows.
        reading: Its method.
        fields: Of its training, beside the usual ones.
        loss: What it learns by. None: as published.
        ways: Options of each way to read, by the name behind the reader's; "" is the usual way.
        drafts: Whether it drafts for the model as well.
    """

    name: str
    reading: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    loss: WordLoss | None = None
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    drafts: bool = False


READERS = (
    TrainedReading("cppd", "cppd", drafts=True),
    TrainedReading("cppd, letters alone", "cppd", loss=partial(counting_loss, auxiliary=0.0)),
    TrainedReading("cppd, three joining layers", "cppd", {"joins": 3}),
    TrainedReading("cppd, five absent letters counted", "cppd", {"absent": 5}),
    TrainedReading("lister", "lister", drafts=True),
    TrainedReading("lister, end as published", "lister", {"ending": 0.01}),
    TrainedReading("lister, with distances", "lister", {"distances": True}),
    TrainedReading(
        "lister, two rounds",
        "lister",
        {"rounds": 2},
        ways={"": {}, ", one read": {"rounds": 1}, ", none read": {"rounds": 0}},
    ),
    TrainedReading(
        "mdiff4str",
        "mdiff4str",
        ways={
            "": {},
            ", one pass": {"steps": 1},
            ", in blocks": {"policy": "block-low-confidence"},
            ", at random": {"policy": "random"},
            ", from left to right": {"policy": "left-to-right"},
            ", cloze": {"policy": "cloze"},
            ", and reflecting": {"reflect": True},
        },
        drafts=True,
    ),
    TrainedReading("mdiff4str, three copies", "mdiff4str", {"copies": 3}),
    TrainedReading(
        "mdiff4str, any masks", "mdiff4str", loss=partial(masked_loss, patterns=PATTERNS[-1:])
    ),
    TrainedReading(
        "mdiff4str, no wrong letters", "mdiff4str", loss=partial(masked_loss, replaced=0.0)
    ),
)


def train_base(out: Path, steps: int, rows: int, seed: int) -> Path:
    """The model that writes letter by letter; at once where it stands already."""
    base = out / f"reader-{seed}"
    sizes: Mapping[str, Any] = {"width": 64, "decoder": 1}
    train_reader(ReaderSpec(str(base), steps=steps, rows=rows, seed=seed, **sizes, **LEARNED))
    return base


def drawn_words(
    count: int, least: int, most: int, faults: ImageFaults, seed: int
) -> list[tuple[str, Image]]:
    """Held-out words, and an image of each."""
    rng = np.random.default_rng([seed, 99])
    out = list[tuple[str, Image]]()
    while len(out) < count:
        word = draw_word(rng, least, most)
        if not held_out(word):
            continue
        file = io.BytesIO()
        Pictures.fromarray(draw_word_image(word, faults, rng)).save(file, "PNG")
        out.append((word, Image(file.getvalue())))
    return out


@dataclass(frozen=True)
class ReadWords:
    """What a method read.

    Attributes:
        texts: Of each image.
        right: Share of the words that are right.
        sure: Share of their letters that are wrong with a chance above 0.9.
        seconds: Processor time of a word.
        letters: A pass of the model.
    """

    texts: tuple[str, ...]
    right: float
    sure: float
    seconds: float
    letters: float


def read_words(
    model: LoadedModel, words: Sequence[tuple[str, Image]], method: str, options: Mapping[str, Any]
) -> ReadWords:
    """Read images one by one with a method."""
    asks = [
        Ask(
            "",
            method=method,
            options=options,
            source=image,
            max_tokens=48,
            sampling=GREEDY,
            logprobs=0,
        )
        for _, image in words
    ]
    generate(model, asks[0])  # what is loaded when it is first asked for is not timed
    began = time.process_time()
    answers = [generate(model, ask) for ask in asks]
    spent = (time.process_time() - began) / len(asks)
    texts = tuple(a.text for a in answers)
    wrong = 0
    for (word, _), answer in zip(words, answers, strict=True):
        notes = answer.choices[0].logprobs or ()
        wrong += sum(
            letter != said and note.model_logp > math.log(0.9)
            for letter, said, note in zip(word, answer.text, notes)
        )
    right = fmean([text == word for text, (word, _) in zip(texts, words, strict=True)])
    letters = sum(len(word) for word, _ in words)
    passes = fmean([a.metrics["target_passes"] for a in answers])
    written = fmean([len(a.choices[0].token_ids) for a in answers])
    return ReadWords(texts, right, wrong / letters, spent, written / passes)


def measure_seed(
    out: Path,
    steps: tuple[int, int],
    rows: int,
    tried: int,
    seed: int,
    readers: Sequence[TrainedReading],
) -> Iterator[Mapping[str, Any]]:
    """All figures of one seed, a row for each set of words and way to read; `steps`: of the model, and of each reader."""
    base = train_base(out, steps[0], rows, seed)
    models = list[tuple[TrainedReading, LoadedModel]]()
    for made in readers:
        at = out / f"{made.name.replace(', ', '-').replace(' ', '-')}-{seed}"
        spec = WordReaderSpec(
            str(at),
            str(base),
            made.reading,
            steps=steps[1],
            rows=rows,
            longest=25,
            rate=3e-3,
            muon=0.02,
            seed=seed,
            **LEARNED,
            **made.fields,
        )
        train_word_reader(spec, made.loss)
        models.append((made, load(str(base), draft=None, trained=[str(at)], threads=1)))
    plain = load(str(base), draft=None, threads=1)
    for kind, (least, most, faults) in SETS.items():
        words = drawn_words(tried, least, most, faults, seed)
        greedy = read_words(plain, words, "plain", {})
        yield figures(kind, "plain", seed, greedy, greedy)
        for made, model in models:
            for way, options in made.ways.items():
                read = read_words(model, words, made.reading, options)
                yield figures(kind, made.name + way, seed, read, greedy)
            if made.drafts:
                read = read_words(model, words, "read-ahead", {})
                if read.texts != greedy.texts:
                    raise SystemExit(f"read-ahead with {made.name} differs from plain")
                yield figures(kind, f"read-ahead, {made.name}", seed, read, greedy)


def figures(
    kind: str, name: str, seed: int, read: ReadWords, plain: ReadWords
) -> Mapping[str, Any]:
    """A row of the file."""
    return {
        "words": kind,
        "reader": name,
        "seed": seed,
        "right": round(read.right, 4),
        "sure": round(read.sure, 4),
        "cpu": round(read.seconds / plain.seconds, 4),
        "ms": round(1000 * read.seconds, 3),
        "letters": round(read.letters, 3),
    }


COLUMNS: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "right": ("words read right", lambda name: not name.startswith("read-ahead")),
    "sure": ("letters wrong and sure", lambda name: name.startswith("mdiff4str")),
    "cpu": ("time of a word", lambda name: name != "plain"),
    "letters": ("letters a pass", lambda name: name.startswith("read-ahead")),
}
"""By its name a column: what a report calls it, and of which readers it is told."""


def table_lines(path: Path) -> Iterator[str]:
    """The tables of a report: of each column one, means of seeds with Student's 95 % intervals."""
    with path.open(newline="", encoding="utf-8") as file:
        held = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["reader"] for row in held))
    for column, (called, is_told) in COLUMNS.items():
        yield f"\n| {called} | {' | '.join(SETS)} |\n|---|{'--:|' * len(SETS)}"
        for name in filter(is_told, names):
            cells = [
                [float(r[column]) for r in held if (r["words"], r["reader"]) == (kind, name)]
                for kind in SETS
            ]
            yield f"| {name} | {' | '.join(map(cell_of_seeds, cells))} |"


def cell_of_seeds(values: Sequence[float]) -> str:
    """A mean over seeds with its interval; the value alone where there is one."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return "{:.3f} ({:.3f} to {:.3f})".format(fmean(values), *student_interval(values))


def main() -> None:
    """Measure, a row at a time, or print the tables of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="directory of the trained models")
    parser.add_argument("--csv", type=Path, help="file of the rows; those of other seeds stay")
    parser.add_argument("--table", type=Path, help="only print the tables of this file")
    parser.add_argument("--steps", type=int, default=1200, help="of the model")
    parser.add_argument("--reader-steps", type=int, default=400, help="of each reader")
    parser.add_argument("--only", nargs="+", help="names of readers; all without")
    parser.add_argument("--rows", type=int, default=32, help="images of a step")
    parser.add_argument("--tried", type=int, default=100, help="held-out words of each kind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table_lines(asked.table)))
        return
    if not (asked.out and asked.csv):
        parser.error("give --out and --csv, or --table")
    readers = [made for made in READERS if not asked.only or made.name in asked.only]
    steps = (asked.steps, asked.reader_steps)
    for seed in asked.seeds:
        for row in measure_seed(asked.out, steps, asked.rows, asked.tried, seed, readers):
            print(row, flush=True)
            merge_csv(asked.csv, [row], ("words", "reader", "seed"))


if __name__ == "__main__":
    main()
