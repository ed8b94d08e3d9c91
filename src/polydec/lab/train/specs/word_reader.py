"""What `polydec train word-reader` can be told."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import InRange, OneOf, ValueNote, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps
from polydec.lab.train.specs.reader import (
    Bars,
    Blur,
    DrawnOnce,
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
    ending: Annotated[
        float,
        InRange(0, 100),
        ValueNote("0.01 in the paper, over many more steps"),
        "lister: what the end of a walk weighs beside its letters",
    ] = 0.3
    distances: Annotated[
        bool, "lister: scores also have a bias of how far the next letter is; the paper has none"
    ] = False
    joins: Annotated[
        int,
        InRange(1, 16),
        ValueNote("1 in the paper"),
        "cppd: layers that join places with letters; in every second one a place looks at those before it",
    ] = 1
    absent: Annotated[
        int,
        InRange(0, 1 << 16),
        ValueNote("0: all letters"),
        "cppd: letters that a word does not have, drawn for each, that are counted beside its own",
    ] = 0
    copies: Annotated[
        int,
        InRange(1, 16),
        ValueNote("3 in the public code"),
        "mdiff4str: masked copies of a word behind one pass over its image",
    ] = 1
    least: LeastLetters = 3
    most: MostLetters = 8
    blur: Blur = 0.5
    shear: Shear = 0.3
    noise: Noise = 0.1
    bars: Bars = 2
    images: DrawnOnce = 0
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
        usual = {f.name: f.default for f in fields(self)}
        for name, reading in OWN_FIELDS.items():
            if getattr(self, name) != usual[name] and self.reading != reading:
                raise RequestError(
                    f"{name} is {getattr(self, name)}: it is read with --reading {reading} alone, so leave it at {usual[name]}"
                )


OWN_FIELDS = MappingProxyType(
    {
        "rounds": "lister",
        "ending": "lister",
        "distances": "lister",
        "joins": "cppd",
        "absent": "cppd",
        "copies": "mdiff4str",
    }
)
"""Fields that one kind of head reads, by name, with the kind."""


COMMAND = TrainingCommand(
    "word-reader",
    "Train a reader that reads a word in an image at once, for cppd, lister, mdiff4str and read-ahead.",
    WordReaderSpec,
    "polydec.lab.train.word_reader:train_word_reader",
    sentence=reader_training_summary,
)
