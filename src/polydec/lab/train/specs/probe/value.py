"""What `polydec train probe --recipe value` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import (
    HeadRate,
    OfCanvas,
    Out,
    SaveEvery,
    Seed,
    Steps,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED


@dataclass(frozen=True)
class ValueSpec:
    """A network that foretells what the answer on a half-filled canvas will be worth."""

    recipe: ClassVar[str] = "value"

    out: Out
    reward: Annotated[str, "directory of the reward of texts that it foretells"]
    target: Annotated[str, "a masked-diffusion model: a name like --model's"] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    each: Annotated[int, AtLeast(1), "answers of each task"] = 60
    max_tokens: OfCanvas = 13
    temperature: Annotated[float, AtLeast(0), "at which the model answers"] = 1.0
    width: Annotated[int, InRange(4, 1 << 12), "of the network"] = 32
    rows: Annotated[int, AtLeast(1), "canvases a step"] = 64
    steps: Steps = 600
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = probe_command(ValueSpec, "the value network of svdd-mc from a model's own runs")
