"""What `polydec train reader` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, NoFlag, ValueNote, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps
from polydec.lab.train.specs.seq2seq import HEAD

WordFolder = Annotated[
    str | None,
    "folder of images with labels.jsonl, rows of an image's file name and its text (default: words that are drawn here)",
]
LeastLetters = Annotated[int, InRange(1, 64), "letters of a drawn word at least"]
MostLetters = Annotated[int, InRange(1, 64), "letters of a drawn word at most"]
Blur = Annotated[
    float, InRange(0, 1), "largest share of a pixel that is spread over its neighbours"
]
Shear = Annotated[
    float, InRange(0, 1), "largest shift of a row of pixels against the next, in columns"
]
Noise = Annotated[float, InRange(0, 1), "standard deviation of what is added to each pixel"]
Bars = Annotated[int, InRange(0, 8), "bars that cover letters of a word, at most"]
DrawnOnce = Annotated[
    int,
    AtLeast(0),
    ValueNote("0: new ones in every step"),
    "images that are drawn once, from which steps take theirs again and again",
]
WordsAStep = Annotated[int, AtLeast(1), "images of a step"]


@dataclass(frozen=True)
class ReaderSpec:
    """What `train_reader` makes."""

    out: Resumed
    data: WordFolder = None
    steps: Steps = 2000
    rows: WordsAStep = 64
    encoder: Annotated[int, InRange(1, 64), "layers that read the image"] = 2
    decoder: Annotated[int, InRange(1, 64), "layers that write the text"] = 2
    width: Annotated[int, InRange(32, 4096), "of the network, a multiple of 32"] = 96
    least: LeastLetters = 3
    most: MostLetters = 8
    blur: Blur = 0.5
    shear: Shear = 0.3
    noise: Noise = 0.1
    bars: Bars = 2
    images: DrawnOnce = 0
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    inner: Annotated[int, AtLeast(1), NoFlag(), "units of the map that reads a window"] = 192
    seed: Seed = 0
    save_every: SaveEvery = 200

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.width % HEAD:
            raise RequestError(f"width is {self.width}: it must be a multiple of {HEAD}")
        if self.least > self.most:
            raise RequestError(
                f"least is {self.least}: it must not exceed most, which is {self.most}"
            )


def reader_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    right = result["held_out_right"]
    # A small folder may have no held-out image.
    said = "" if right is None else f"held out: {right:.1%} of words read right\n"
    return (
        f"{said}{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s; "
        f"written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "reader",
    "Train a small model that reads a word in an image: an encoder of pixels, and a decoder that writes letter by letter.",
    ReaderSpec,
    "polydec.lab.train.reader:train_reader",
    sentence=reader_training_summary,
)
