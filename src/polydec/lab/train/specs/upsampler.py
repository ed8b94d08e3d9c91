"""What `polydec train upsampler` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, Resumed, SaveEvery, Seed, Steps, Target
from polydec.lab.train.specs.pictures import PictureFiles


@dataclass(frozen=True)
class UpsamplerSpec:
    """What `train_upsampler` makes, for a target that draws pictures token by token.

    Attributes:
        ratio: As of the model of small pictures (`polydec train pictures --low-of`).
    """

    out: Resumed
    images: PictureFiles
    target: Target = "zoo:digits"
    ratio: Annotated[
        int, InRange(2, 16), "rows of the target's pictures for one of the small ones"
    ] = 2
    units: Annotated[int, InRange(1, 1024), "channels of the convolutions"] = 64
    layers: Annotated[int, InRange(0, 64), "convolutions, each of which looks two rows up"] = 3
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(1), "pictures a step"] = 64
    rate: AdamRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


def upsampler_summary(result: Mapping[str, Any]) -> str:
    """What was measured on held-out pictures, and what the run took."""
    return (
        f"held-out pictures, nats a token: {result['held_out_nats']:.3f}; the likeliest token is right in "
        f"{100 * result['held_out_right']:.1f} %\n{result['parameters']:,} parameters, {result['steps']:,} steps, "
        f"{result['seconds']:.0f} s; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "upsampler",
    "Train what lifts small pictures to a model's large ones, for mulo-sd.",
    UpsamplerSpec,
    "polydec.lab.train.upsampler:train_upsampler",
    sentence=upsampler_summary,
)
