"""What `polydec train probe --recipe prm` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, GreaterThan, NoFlag, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import HeadRate, Kept, Problems, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class PrmSpec:
    """A process reward model, from one solution of each problem that the target draws."""

    recipe: ClassVar[str] = "prm"

    out: Kept
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that the target solves"] = 1500
    temperature: Annotated[float, GreaterThan(0), "at which it solves them"] = 0.8
    inner: Annotated[int, AtLeast(1), NoFlag(), "width of the head"] = 64
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(1), NoFlag(), "states a step"] = 256
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


COMMAND = probe_command(PrmSpec, "a process reward model for a reasoner on its own solutions")
