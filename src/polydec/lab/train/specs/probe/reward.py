"""What `polydec train probe --recipe reward` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import HeadRate, Out, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class RewardSpec:
    """A classifier that says which of two files a text is like."""

    recipe: ClassVar[str] = "reward"

    out: Out
    good: Annotated[str, "a file of texts that are worth much, one a line"]
    bad: Annotated[str, "a file of texts that are worth little, one a line"]
    size: Annotated[int, InRange(16, 1 << 20), "weights of the classifier"] = 4096
    order: Annotated[int, InRange(1, 8), "bytes of the longest sequences that it reads"] = 3
    steps: Steps = 400
    rate: HeadRate = 0.1
    most: Annotated[int, AtLeast(2), "lines of a file that are read at most"] = 20_000
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = probe_command(RewardSpec, "a classifier of texts, a reward for svdd-reward")
