"""What `polydec train joint` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    AnswersAStep,
    Out,
    Rate,
    SaveEvery,
    Seed,
    Steps,
    Tasks,
    Varied,
)
from polydec.lab.train.tasks import SHIPPED


@dataclass(frozen=True)
class JointSpec:
    """What `train_joint` makes.

    Attributes:
        target: A directory (or zoo:NAME) of a model that sees its full canvas; it writes one token
            a pass.
        count: Gaps that a pass will fill, at least 2, as the first gap of a pass needs no layer.
    """

    out: Out
    target: Annotated[str, "a masked-diffusion model of ours"] = "zoo:diffusion"
    tasks: Tasks = SHIPPED
    texts: Annotated[int, AtLeast(1), "answers that the target writes"] = 1024
    count: Annotated[int, AtLeast(2), "gaps that a pass will fill"] = 4
    rows: AnswersAStep = 64
    steps: Steps = 600
    rate: Rate = 2e-3
    seed: Seed = 0
    save_every: SaveEvery = 100
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "joint",
    "Train the layer of adjust on a model's own answers; prints what was measured as one JSON object.",
    JointSpec,
    "polydec.lab.train.joint:train_joint",
)
