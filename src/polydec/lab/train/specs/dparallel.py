"""What `polydec train dparallel` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    AnswersAStep,
    Lora,
    OfCanvas,
    OwnPrompts,
    Rate,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED


@dataclass(frozen=True)
class DParallelSpec:
    """What `train_dparallel` makes.

    Attributes:
        target: A model of the Llama skeleton that sees its full canvas.
    """

    out: Resumed
    target: Annotated[
        str, "a masked-diffusion model, which is begun with: a name like --model's"
    ] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    data: OwnPrompts = None
    each: Annotated[int, AtLeast(1), "answers of each task, or kind of prompt"] = 1000
    max_tokens: OfCanvas = 13
    beta: Annotated[float, AtLeast(0), "weight of the entropy (0: its own answers only)"] = 2.0
    block: Annotated[
        int,
        AtLeast(0),
        "positions of the block that is learned, later ones being hidden, as published (0: the whole answer)",
    ] = 0
    half: Annotated[bool, "half of it is masked, as published, in place of any share"] = False
    lora: Lora = 0
    rows: AnswersAStep = 32
    steps: Steps = 2000
    rate: Rate = 5e-4
    seed: Seed = 0
    save_every: SaveEvery = 100
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "dparallel",
    "Teach a masked-diffusion model to be sure of more tokens at once; prints what was measured as one JSON object.",
    DParallelSpec,
    "polydec.lab.train.dparallel:train_dparallel",
)
