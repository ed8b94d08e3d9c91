"""What `polydec train pictures` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, CommaList, InRange, ParseAs, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
    Width,
)

PictureFiles = Annotated[
    str,
    "pictures with their classes: a .npz (images, and labels or names), a folder with one, or a folder with a folder "
    "of PNG or JPEG files for each class",
]


@dataclass(frozen=True)
class PicturesSpec:
    """What `train_pictures` makes: a model whose tokens are a picture of a class.

    Attributes:
        patch: A token draws a square of so many pixels; 1: a colour.
        masked: A masked-diffusion model, whose gaps are filled in any order; else an autoregressive
            one, which draws from the top left.
        drop: What stands in place of a class that is left out is a word of its own, `any`; in a
            masked-diffusion model a gap.
        classes: In the order of their labels. None: the labels are the words.
        width: Width of the network, a multiple of 32.
        layers: With encoder, those that gaps pass.
        low_of: Side, patch, colours and classes are then those of that model: side, patch, colours and
            classes are not read.
    """

    out: Resumed
    images: PictureFiles
    classes: Annotated[
        tuple[str, ...],
        ParseAs(CommaList),
        "words of the classes, in the order of their labels (default: the labels)",
    ] = ()
    side: Annotated[int, InRange(2, 64), "tokens of a row and of a column"] = 14
    patch: Annotated[int, InRange(1, 16), "pixels of a token's side"] = 1
    colours: Annotated[
        int, InRange(2, 4096), "what a token may draw: grey levels, colours or patches, by k-means"
    ] = 8
    masked: Annotated[bool, "a masked-diffusion model, for maskgit"] = False
    row_ends: Annotated[
        bool, "a token of its own stands behind every row, as in models that write several sizes"
    ] = False
    low_of: Annotated[
        str | None,
        "a model that draws token by token, by a name like --model's: this one draws the same pictures in fewer of its "
        "tokens, and drafts for it (mulo-sd)",
    ] = None
    ratio: Annotated[
        int, InRange(2, 16), "with low_of: rows of that model's pictures for one of these"
    ] = 2
    steps: Steps = 2000
    rows: Annotated[int, AtLeast(1), "pictures a step"] = 32
    width: Width = 96
    layers: Layers = 3
    seed: Seed = 0
    save_every: SaveEvery = 100
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    encoder: Annotated[
        int,
        InRange(0, 256),
        "masked: layers that tokens pass once and gaps never do (ENAT; 0: all positions pass all layers)",
    ] = 0
    reused: Annotated[
        float,
        InRange(0, 1),
        "with encoder: share of the steps in which older tokens were encoded in a pass before",
    ] = 0.5
    average: Annotated[
        float,
        InRange(0, 0.9999),
        "with encoder: share that a step leaves of the moving average of the weights, which encodes older tokens and is "
        "what is saved (0: the weights themselves)",
    ] = 0.99
    drop: Annotated[
        float,
        InRange(0, 1),
        "share of the classes that are left out, so that guidance knows the law without one",
    ] = 0.1

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.width % 32:
            raise RequestError(f"width is {self.width}: it must be a multiple of 32")
        if self.low_of is not None and self.masked:
            raise RequestError("masked is set, and low_of is given: a draft draws token by token")
        if self.row_ends and (self.masked or self.low_of is not None):
            raise RequestError(
                "row_ends is set: a model that draws token by token from pictures of one size has them, so leave out "
                f"{'masked' if self.masked else 'low_of'}"
            )
        if self.encoder and not self.masked:
            raise RequestError(
                f"encoder is {self.encoder}: tokens are encoded apart from gaps, which only a masked model has (--masked)"
            )


def picture_training_summary(result: Mapping[str, Any]) -> str:
    """What was measured on held-out pictures, and what the run took."""
    return (
        f"held-out pictures, nats a token: {result['held_out_nats']:.3f}; a token's tile is "
        f"{result['tile_error']:.1f} of 255 from its pixels\n{result['parameters']:,} parameters, "
        f"{result['steps']:,} steps, {result['seconds']:.0f} s; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "pictures",
    "Train a small model that draws pictures of a class, token by token or (--masked) in any order.",
    PicturesSpec,
    "polydec.lab.train.pictures:train_pictures",
    sentence=picture_training_summary,
)
