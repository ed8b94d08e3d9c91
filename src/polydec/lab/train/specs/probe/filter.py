"""What `polydec train probe --recipe filter` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import (
    HeadRate,
    OfCanvas,
    Out,
    OwnPrompts,
    SaveEvery,
    Seed,
    Steps,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED, TASKS, draw_task


@dataclass(frozen=True)
class FilterSpec:
    """A filter of the confidences of a block (Learn2PD).

    Attributes:
        hidden: 0, as many as positions, is as published.
        written: It reads the confidence where a token stands, as published, in place of 1.
    """

    recipe: ClassVar[str] = "filter"

    out: Out
    target: Annotated[str, "a masked-diffusion model: a name like --model's"] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    each: Annotated[int, AtLeast(1), "answers of each task, or kind of prompt"] = 250
    max_tokens: OfCanvas = 13
    block: Annotated[
        int, AtLeast(1), "positions of a block: of the filter, and of learn2pd then"
    ] = 13
    hidden: Annotated[int, AtLeast(0), "units of its hidden layer (0: as many as positions)"] = 64
    steps: Steps = 6000
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50
    varied: Varied = False
    data: OwnPrompts = None
    written: Annotated[bool, "it reads the model's confidence in written tokens, too"] = False

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.tasks:
            raise RequestError(f"tasks is empty: name some of {', '.join(TASKS)}")
        for name in self.tasks:
            draw_task(name, 0, 0)


COMMAND = probe_command(FilterSpec, "the filter of learn2pd from a model's own runs")
