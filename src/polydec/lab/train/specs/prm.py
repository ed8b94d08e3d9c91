"""What `polydec train prm` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, NoFlag, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Kept, Problems, Seed, Steps


@dataclass(frozen=True)
class PrmSpec:
    """What `train_prm` makes, from one solution of each problem that the target draws."""

    out: Kept
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that the target solves"] = 1500
    temperature: Annotated[float, GreaterThan(0), "at which it solves them"] = 0.8
    inner: Annotated[int, AtLeast(1), NoFlag(), "width of the head"] = 64
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(1), NoFlag(), "states a step"] = 256
    rate: Annotated[float, GreaterThan(0), NoFlag(), "highest learning rate"] = 3e-3
    seed: Seed = 0

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


COMMAND = TrainingCommand(
    "prm",
    "Train a process reward model for a reasoner on its own solutions; prints what was measured as one JSON object.",
    PrmSpec,
    "polydec.lab.train.prm:train_prm",
)
