"""What `polydec train probe --recipe text-router` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, NoFlag, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import HeadRate, Kept, Problems, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class TextRouterSpec:
    """A language model that reads the text and says which steps the target would better."""

    recipe: ClassVar[str] = "text-router"

    out: Kept
    draft: Annotated[str, "the small reasoner: a name like --draft's"]
    target: Annotated[str, "the reasoner: a name like --model's"] = "zoo:reasoner"
    reward: Annotated[
        str | None,
        "a process reward model of the target's, which values the steps (default: the checker of the problems does)",
    ] = None
    start: Annotated[
        str | None, "the language model that becomes the router (default: the draft)"
    ] = None
    kinds: Problems = tuple(problems.KINDS)
    each: Annotated[int, AtLeast(1), "problems of each kind that both solve together"] = 400
    temperature: Annotated[float, AtLeast(0), "at which they solve them"] = 0.6
    head: Annotated[int, AtLeast(1), NoFlag(), "numbers between the state and the chance"] = 32
    steps: Steps = 300
    rows: Annotated[int, AtLeast(2), NoFlag(), "texts a step, half of them of each class"] = 32
    rate: HeadRate = 5e-4
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        problems.require_kinds(self.kinds)


COMMAND = probe_command(
    TextRouterSpec, "the router of arbitrage that reads the text, a language model of its own"
)
