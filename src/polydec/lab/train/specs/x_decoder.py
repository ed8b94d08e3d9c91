"""What `polydec train x-decoder` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps

HEADS = 4
"""Heads of attention."""


@dataclass(frozen=True)
class XDecoderSpec:
    """What `train_x_decoder` makes: a query decoder for a model that reads images.

    Attributes:
        masked: Whether an object query reads those cells alone that its last mask has.
    """

    out: Resumed
    target: Annotated[
        str,
        "the model whose vision tower reads images, one of `train vision`: a name like --model's",
    ] = "zoo:vision"
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(2), "scenes of a step"] = 16
    width: Annotated[int, InRange(HEADS, 4096), "of states, a multiple of 4"] = 96
    layers: Annotated[int, InRange(1, 64), "of the decoder"] = 6
    text_layers: Annotated[int, InRange(1, 64), "that read names and phrases"] = 1
    objects: Annotated[
        int, InRange(4, 8), "queries that become masks; a scene has up to 4 things"
    ] = 6
    longest: Annotated[int, InRange(28, 1024), "tokens of a caption, which a buffer holds"] = 50
    masked: Annotated[bool, "object queries read the cells of their last mask alone"] = True
    cross_entropy: Annotated[float, AtLeast(0), "weight of the cross-entropy of a mask's cells"] = (
        2.0
    )
    dice: Annotated[float, AtLeast(0), "weight of the Dice loss of a mask"] = 2.0
    naming: Annotated[float, AtLeast(0), "weight of the names of objects"] = 1.0
    caption: Annotated[float, AtLeast(0), "weight of a caption's tokens"] = 1.0
    contrast: Annotated[
        float, AtLeast(0), "weight of telling the captions of a step's images apart"
    ] = 0.2
    refer: Annotated[float, AtLeast(0), "weight of finding what a phrase speaks of"] = 1.0
    rate: AdamRate = 1e-3
    muon: MuonRate = 0.01
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.width % HEADS:
            raise RequestError(f"width is {self.width}: it must be a multiple of {HEADS}")


def x_decoder_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    return (
        f"held-out captions right: {result['captions_right']:.1%}, of regions {result['regions_right']:.1%}; names right "
        f"{result['names_right']:.1%}, their masks' IoU {result['named_overlap']:.3f}; IoU of what phrases speak of: "
        f"{result['referred_overlap']:.3f}\n{result['parameters']:,} parameters, {result['steps']:,} steps, "
        f"{result['seconds']:.0f} s; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "x-decoder",
    "Train a query decoder for a model that reads images: captions, names and masks from one network (X-Decoder).",
    XDecoderSpec,
    "polydec.lab.train.x_decoder:train_x_decoder",
    sentence=x_decoder_training_summary,
)
