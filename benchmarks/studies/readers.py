"""Readers of words in images: CPPD, LISTER and MDiff4STR beside the model that writes letter by letter, and as its drafters.

    python -m benchmarks.studies.readers --out DIR [--steps 900] [--tried 120] [--seeds 3]

Each seed trains a model of `polydec train reader` on drawn words of 3 to 8 letters, and three readers that begin with its
encoder. All of them read the same held-out words: clean ones, ones of which up to three bars cover parts, and ones of 12 to 16
letters. Of each: the share of words that are read right, and processor time a word, request and image decoding included. What
the readers draft for the model must be its own greedy text, or the study fails.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image as Pictures

from polydec import Ask, Image, Sampling, generate, load
from polydec.api import LoadedModel
from polydec.lab.bench.intervals import shared_trials_interval, student_interval
from polydec.lab.train.data import held_out
from polydec.lab.train.reader import train_reader
from polydec.lab.train.specs.reader import ReaderSpec
from polydec.lab.train.specs.word_reader import WordReaderSpec
from polydec.lab.train.word_images import ImageFaults, draw_word, draw_word_image
from polydec.lab.train.word_reader import train_word_reader

CLEAN = ImageFaults(blur=0.3, shear=0.2, noise=0.05, bars=0)
COVERED = ImageFaults(blur=0.3, shear=0.2, noise=0.05, bars=3)
SETS: Mapping[str, tuple[int, int, ImageFaults]] = {
    "clean": (3, 8, CLEAN),
    "covered": (3, 8, COVERED),
    "longer": (12, 16, CLEAN),
}
READINGS = ("cppd", "lister", "mdiff4str")
GREEDY = Sampling(temperature=0.0)


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


def read_words(
    model: LoadedModel, words: Sequence[tuple[str, Image]], method: str, **options: Any
) -> tuple[list[str], float, float]:
    """What a method reads, its seconds of processor time a word, and letters a pass of the model."""
    asks = [
        Ask("", method=method, options=options, source=image, max_tokens=32, sampling=GREEDY)
        for _, image in words
    ]
    generate(model, asks[0])  # what is loaded when it is first asked for is not timed
    began = time.process_time()
    answers = [generate(model, ask) for ask in asks]
    spent = (time.process_time() - began) / len(asks)
    passes = fmean([a.metrics["target_passes"] for a in answers])
    letters = fmean([len(a.choices[0].token_ids) for a in answers])
    return [a.text for a in answers], spent, letters / passes


def measure_seed(out: Path, steps: int, rows: int, tried: int, seed: int) -> dict[str, Any]:
    """All figures of one seed, by the set of words and what reads them."""
    base = out / f"reader-{seed}"
    train_reader(ReaderSpec(str(base), steps=steps, rows=rows, width=64, seed=seed))
    trained = list[str]()
    for reading in READINGS:
        trained.append(str(out / f"{reading}-{seed}"))
        spec = WordReaderSpec(
            trained[-1], str(base), reading, steps=steps, rows=rows, longest=25, seed=seed
        )
        train_word_reader(spec)
    figures = dict[str, Any]()
    for name, (least, most, faults) in SETS.items():
        words = drawn_words(tried, least, most, faults, seed)
        plain = load(str(base), draft=None, threads=1)
        greedy, spent, _ = read_words(plain, words, "plain")
        figures[f"{name}: plain"] = (_right(greedy, words), spent, 1.0)
        for reading, at in zip(READINGS, trained, strict=True):
            model = load(str(base), draft=None, trained=[at], threads=1)
            texts, spent, _ = read_words(model, words, reading)
            figures[f"{name}: {reading}"] = (_right(texts, words), spent, None)
            texts, spent, each = read_words(model, words, "read-ahead")
            if texts != greedy:
                raise SystemExit(f"read-ahead with {reading} differs from plain")
            figures[f"{name}: read-ahead, {reading}"] = (_right(texts, words), spent, each)
            if reading == "mdiff4str":
                texts, spent, _ = read_words(model, words, reading, steps=1)
                figures[f"{name}: mdiff4str, one pass"] = (_right(texts, words), spent, None)
    return figures


def _right(texts: Sequence[str], words: Sequence[tuple[str, Image]]) -> float:
    return fmean([text == word for text, (word, _) in zip(texts, words, strict=True)])


def summed_up(seeds: Sequence[dict[str, Any]], tried: int) -> list[dict[str, Any]]:
    """Of each row the mean over seeds and its 95 % interval; times beside those of plain decoding."""
    rows = list[dict[str, Any]]()
    for name in seeds[0]:
        right = [s[name][0] for s in seeds]
        base = name.partition(":")[0] + ": plain"
        times = [s[name][1] / s[base][1] for s in seeds]
        sure = shared_trials_interval(right, tried * len(seeds))
        shares = [round(x, 3) for x in (fmean(right), *sure)]
        row: dict[str, Any] = {"row": name, "right": shares, "time": _interval(times)}
        row["ms"] = round(1000 * fmean([s[name][1] for s in seeds]), 2)
        if seeds[0][name][2] is not None:
            row["letters a pass"] = _interval([s[name][2] for s in seeds])
        rows.append(row)
    return rows


def _interval(values: Sequence[float]) -> list[float]:
    """Mean, and the bounds of its 95 % interval where there are several."""
    if len(values) < 2:
        return [round(values[0], 3)]
    return [round(x, 3) for x in (fmean(values), *student_interval(values))]


def main() -> None:
    """One line of JSON a seed, then one a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=32, help="images of a step")
    parser.add_argument("--tried", type=int, default=120, help="held-out words of each kind")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    seeds = list[dict[str, Any]]()
    for seed in range(asked.seeds):
        seeds.append(measure_seed(asked.out, asked.steps, asked.rows, asked.tried, seed))
        print(json.dumps({"seed": seed, **seeds[-1]}), flush=True)
    for row in summed_up(seeds, asked.tried):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
