"""What `polydec train reward` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Out, Seed, Steps


@dataclass(frozen=True)
class RewardSpec:
    """What `train_reward` makes."""

    out: Out
    good: Annotated[str, "a file of texts that are worth much, one a line"]
    bad: Annotated[str, "a file of texts that are worth little, one a line"]
    size: Annotated[int, InRange(16, 1 << 20), "weights of the classifier"] = 4096
    order: Annotated[int, InRange(1, 8), "bytes of the longest sequences that it reads"] = 3
    steps: Steps = 400
    rate: Annotated[float, GreaterThan(0), NoFlag(), "highest learning rate"] = 0.1
    most: Annotated[int, AtLeast(2), "lines of a file that are read at most"] = 20_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "reward",
    "Train a classifier of texts, a reward for svdd-reward; prints what was measured as one JSON object.",
    RewardSpec,
    "polydec.lab.train.reward:train_reward",
)
