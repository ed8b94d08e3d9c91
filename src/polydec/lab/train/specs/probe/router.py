"""What `polydec train probe --recipe router` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, NoFlag, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import HeadRate, Kept, Problems, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class RouterSpec:
    """A head on a draft model's states that says which of its steps the target would better."""

    recipe: ClassVar[str] = "router"

    out: Kept
    draft: Annotated[str, "the small reasoner: a name like --draft's"]
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    reward: Annotated[str, "a process reward model of the target's"] = "zoo:reasoner-prm"
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that both solve together"] = 400
    temperature: Annotated[float, AtLeast(0), "at which they solve them"] = 0.6
    inner: Annotated[int, AtLeast(1), NoFlag(), "width of the head"] = 32
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), NoFlag(), "states a step"] = 256
    rate: HeadRate = 1e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


COMMAND = probe_command(RouterSpec, "the router of arbitrage on a draft model's own states")
