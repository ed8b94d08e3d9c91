"""A recogniser of glyphs and a language model: words of stories as images, parts of which bars cover, read by both together.

    python -m benchmarks.studies.glyph_fusion --out DIR --csv lab/reports/glyph-fusion.csv [--tried 100] [--tuned 60]
    python -m benchmarks.studies.glyph_fusion --table lab/reports/glyph-fusion.csv

The recogniser is the model of `polydec train reader` that the study of readers trains (the same DIR shares it): it knows how
letters are drawn, in made-up words. The language model is one of `polydec train lm` on text_stories (POLYDEC_DATA) in capitals,
of tokens of its own; it reads the story before the word (`before`) or nothing. Stories whose SHA-1 modulo 10 is below 6 train
it, words of those at 6 choose the share, the others measure. Every seed has its own recogniser, language model and words.

A row of the file: right: share of words read right; letters: of all letters those to change, insert or leave out (Levenshtein);
share: of the language model, as chosen; cpu: processor time of a word over that of the same search without a language model;
ms: that time.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from benchmarks.csv_rows import merge_csv
from benchmarks.studies.fusion import distance
from benchmarks.studies.readers import CLEAN, COVERED, LEARNED, cell_of_seeds, train_base
from PIL import Image as Pictures

from polydec import Ask, Image, generate, load
from polydec.api import LoadedModel
from polydec.lab.train.data import data_root, hash_bucket, read_rows
from polydec.lab.train.lm import train_lm
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.word_images import ImageFaults, draw_word_image

TUNED = 6
"""Of the stories' SHA-1 modulo 10: those below train the language model, this one chooses shares, those above measure."""
BEFORE = 120
"""Letters of a story that the language model reads before a word."""
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
VOCAB = 768
SETS: Mapping[str, ImageFaults] = {"clean": CLEAN, "covered": COVERED}
CHOSEN_ON = "covered"
"""The images by which shares are chosen."""


@dataclass(frozen=True)
class FusionWay:
    """A way to read.

    Attributes:
        name: Of its rows.
        options: Of the method.
        told: Whether the language model reads the story before the word.
        share: Of the language model. None: the best one on words that choose it.
    """

    name: str
    options: Mapping[str, Any]
    told: bool = True
    share: float | None = None


PUBLISHED = {"published": True}
SUMS = {"mean": False, "lagging": False}
WAYS = (
    FusionWay("recogniser alone", {}, share=0.0),
    FusionWay("published", PUBLISHED, share=0.2),
    FusionWay("published, share chosen", PUBLISHED),
    FusionWay("published, nothing before", PUBLISHED, told=False),
    FusionWay("published, not lagging", {**PUBLISHED, "lagging": False}),
    FusionWay("sums that do not lag", SUMS),
    FusionWay("sums that do not lag, nothing before", SUMS, told=False),
)


@dataclass(frozen=True)
class StoryWord:
    """A word, what stands before it, and its images by the name of their set."""

    word: str
    before: str
    images: Mapping[str, Image]


def capital_stories() -> Iterator[str]:
    """Stories in capitals, of letters and single spaces."""
    for row in read_rows(data_root() / "text_stories" / "stories-0.jsonl.gz"):
        yield re.sub("[^A-Z]+", " ", row["text"].upper()).strip()


def story_words(stories: Sequence[str], count: int, rng: np.random.Generator) -> list[StoryWord]:
    """Words of stories, one of each, with their images.

    Args:
        stories: More than `count` of them.
        count: Words.
        rng: Decides; it is advanced.

    Returns:
        The words.
    """
    out = list[StoryWord]()
    for at in rng.permutation(len(stories)).tolist():
        said = stories[at].split(" ")
        fits = [i for i in range(20, len(said)) if 3 <= len(said[i]) <= LEARNED["most"]]
        if not fits or len(out) == count:
            continue
        place = fits[int(rng.integers(len(fits)))]
        # Whole words, and the space behind the last of them.
        before = " ".join(said[max(0, place - 40) : place])[-BEFORE:].partition(" ")[2] + " "
        images = {name: png_image(said[place], faults, rng) for name, faults in SETS.items()}
        out.append(StoryWord(said[place], before, images))
    return out


def png_image(word: str, faults: ImageFaults, rng: np.random.Generator) -> Image:
    """A word as a request takes it."""
    file = io.BytesIO()
    Pictures.fromarray(draw_word_image(word, faults, rng)).save(file, "PNG")
    return Image(file.getvalue())


def train_capitals(out: Path, steps: int, stories: Sequence[str], seed: int) -> Path:
    """A small language model of stories in capitals; at once where it stands already."""
    data = out / "capitals.jsonl"
    if not data.exists():
        out.mkdir(parents=True, exist_ok=True)
        data.write_text("".join(json.dumps({"text": s}) + "\n" for s in stories), "utf-8")
    at = out / f"capitals-{seed}"
    train_lm(
        LMSpec(
            str(at),
            data=str(data),
            kinds=("prose",),
            shares=(1,),
            train_mb=(6.0,),
            held_kb=40.0,
            bf16=False,
            long=0.0,
            seed=seed,
            shape=LlamaShape(VOCAB, 128, 3, 4, 2, 384, context=512),
            schedule=TrainingSchedule(steps, 4e-3, muon=0.02, save_every=10_000),
        )
    )
    return at


@dataclass(frozen=True)
class FusedWords:
    """Shares of words that are right and of letters that are wrong, and processor time of a word."""

    right: float
    letters: float
    seconds: float


def read_fused(
    model: LoadedModel, words: Sequence[StoryWord], kind: str, way: FusionWay, share: float
) -> FusedWords:
    """Read images one by one."""
    asks = [
        Ask(
            "",
            method="gfd",
            options={**way.options, "share": share, "before": w.before if way.told else ""},
            source=w.images[kind],
            max_tokens=16,
        )
        for w in words
    ]
    generate(model, asks[0])  # what is loaded when it is first asked for is not timed
    began = time.process_time()
    said = [generate(model, ask).choices[0].text for ask in asks]
    spent = (time.process_time() - began) / len(asks)
    off = sum(distance(text, w.word) for text, w in zip(said, words, strict=True))
    right = fmean([text == w.word for text, w in zip(said, words, strict=True)])
    return FusedWords(right, off / sum(len(w.word) for w in words), spent)


def measure_seed(asked: argparse.Namespace, seed: int) -> Iterator[Mapping[str, Any]]:
    """All figures of one seed, a row for each set of words and way to read."""
    base = train_base(asked.out, asked.steps, asked.rows, seed)
    every = list(dict.fromkeys(capital_stories()))
    learned = [s for s in every if hash_bucket(s) != TUNED]
    draft = train_capitals(asked.out, asked.lm_steps, learned, seed)
    model = load(str(base), draft=str(draft), ngrams=None, threads=1)
    rng = np.random.default_rng([seed, 97])
    tuning = story_words([s for s in every if hash_bucket(s) == TUNED], asked.tuned, rng)
    words = story_words([s for s in every if hash_bucket(s) > TUNED], asked.tried, rng)
    alone = dict[str, float]()
    for way in WAYS:
        share = way.share
        if share is None:
            tried = {s: read_fused(model, tuning, CHOSEN_ON, way, s).letters for s in SHARES}
            share = min(tried, key=lambda s: tried[s])
        for kind in SETS:
            read = read_fused(model, words, kind, way, share)
            alone.setdefault(kind, read.seconds)
            yield {
                "words": kind,
                "way": way.name,
                "seed": seed,
                "share": share,
                "right": round(read.right, 4),
                "letters": round(read.letters, 4),
                "cpu": round(read.seconds / alone[kind], 4),
                "ms": round(1000 * read.seconds, 3),
            }


def table_lines(path: Path) -> Iterator[str]:
    """The table of a report: means of seeds with Student's 95 % intervals."""
    with path.open(newline="", encoding="utf-8") as file:
        held = list(csv.DictReader(file))
    yield "| read by | words right, clean | words right, covered | letters wrong, covered | time |"
    yield "|---|--:|--:|--:|--:|"
    columns = (("clean", "right"), ("covered", "right"), ("covered", "letters"), ("covered", "cpu"))
    for way in WAYS:
        rows = [r for r in held if r["way"] == way.name]
        cells = [[float(r[c]) for r in rows if r["words"] == kind] for kind, c in columns]
        shares = ", ".join(dict.fromkeys(f"{float(r['share']):g}" for r in rows))
        yield f"| {way.name} | {' | '.join(map(cell_of_seeds, cells))} |  (share {shares})"


def main() -> None:
    """Measure, a row at a time, or print the tables of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="directory of the trained models")
    parser.add_argument("--csv", type=Path, help="file of the rows; those of other seeds stay")
    parser.add_argument("--table", type=Path, help="only print the tables of this file")
    parser.add_argument("--steps", type=int, default=1200, help="of the recogniser")
    parser.add_argument("--lm-steps", type=int, default=500, help="of the language model")
    parser.add_argument("--rows", type=int, default=32, help="images of a step")
    parser.add_argument("--tried", type=int, default=100, help="words that measure")
    parser.add_argument("--tuned", type=int, default=60, help="words that choose the share")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    if asked.table:
        print("\n".join(table_lines(asked.table)))
        return
    if not (asked.out and asked.csv):
        parser.error("give --out and --csv, or --table")
    for seed in asked.seeds:
        for row in measure_seed(asked, seed):
            print(row, flush=True)
            merge_csv(asked.csv, [row], ("words", "way", "seed"))


if __name__ == "__main__":
    main()
