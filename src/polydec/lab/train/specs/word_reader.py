"""What `polydec train word-reader` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import InRange, OneOf, ValueNote, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps
from polydec.lab.train.specs.reader import (
    Bars,
    Blur,
    LeastLetters,
    MostLetters,
    Noise,
    Shear,
    WordFolder,
    WordsAStep,
    reader_training_summary,
)


@dataclass(frozen=True)
class WordReaderSpec:
    """What `train_word_reader` makes."""

    out: Resumed
    target: Annotated[str, "directory of a model of `polydec train reader` to read for"]
    reading: Annotated[
        str, OneOf("cppd", "lister", "mdiff4str"), "the method whose head it has"
    ] = "cppd"
    data: WordFolder = None
    steps: Steps = 2000
    rows: WordsAStep = 64
    longest: Annotated[int, InRange(1, 1024), "letters of a word that its places are made for"] = 25
    rounds: Annotated[
        int,
        InRange(0, 8),
        ValueNote("2 in the paper"),
        "lister: walks behind the first, over an image that its letters refine",
    ] = 0
    least: LeastLetters = 3
    most: MostLetters = 8
    blur: Blur = 0.5
    shear: Shear = 0.3
    noise: Noise = 0.1
    bars: Bars = 2
    rate: AdamRate = 1e-3
    muon: MuonRate = 0.0
    seed: Seed = 0
    save_every: SaveEvery = 200

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.least <= self.most <= self.longest:
            raise RequestError(
                f"least is {self.least}, most {self.most} and longest {self.longest}: each must not exceed the next"
            )
        if self.rounds and self.reading != "lister":
            raise RequestError(
                f"rounds is {self.rounds}: a reader of {self.reading} does not walk, so leave it at 0"
            )


COMMAND = TrainingCommand(
    "word-reader",
    "Train a reader that reads a word in an image at once, for cppd, lister, mdiff4str and read-ahead.",
    WordReaderSpec,
    "polydec.lab.train.word_reader:train_word_reader",
    sentence=reader_training_summary,
)
