"""What `polydec train probe --recipe length` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import (
    HeadRate,
    Out,
    OwnPairs,
    SaveEvery,
    Seed,
    Steps,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED


@dataclass(frozen=True)
class LengthSpec:
    """A head that foretells how long an answer will be."""

    recipe: ClassVar[str] = "length"

    out: Out
    target: Annotated[str, "a masked-diffusion model: a name like --model's"] = "zoo:diffusion"
    pairs: OwnPairs = None
    tasks: Tasks = SHIPPED
    each: Annotated[int, AtLeast(1), "questions of each task"] = 200
    longest: Annotated[int, InRange(1, 4096), "tokens of an answer, at most"] = 64
    rows: Annotated[int, AtLeast(1), "questions a step"] = 64
    steps: Steps = 400
    rate: HeadRate = 1e-2
    seed: Seed = 0
    save_every: SaveEvery = 50
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = probe_command(LengthSpec, "the head of rum-sundae that foretells lengths")
