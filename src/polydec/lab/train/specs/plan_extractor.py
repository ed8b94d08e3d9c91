"""What `polydec train plan-extractor` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Rate, Resumed, SaveEvery, Seed, Steps
from polydec.lab.train.specs.seq2seq import Longest, Pairs

HEAD = 16
"""Of an attention head, so a width is a multiple of it."""
# Said again in models/nets/plan_pointer.py, which loads torch: a command line must not wait for it.


@dataclass(frozen=True)
class PlanExtractorSpec:
    """What `train_plan_extractor` makes.

    Attributes:
        salience: Weight of the loss by which clauses are told how much of them a text says.
    """

    out: Resumed
    target: Annotated[str, "directory of a model of `polydec train seq2seq --plans` to plan for"]
    # The pairs that the model itself was trained on will do: plans are found, not given.
    data: Pairs
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), "pairs a step"] = 16
    width: Annotated[int, InRange(16, 4096), "of the network, a multiple of 16"] = 64
    reading: Annotated[int, InRange(1, 64), "layers that read the source"] = 2
    items: Annotated[int, InRange(1, 64), "layers that read its clauses"] = 2
    pointing: Annotated[int, InRange(1, 64), "layers that point at clauses"] = 2
    salience: Annotated[
        float, InRange(0, 100), "of the loss that says how much of a clause the text says"
    ] = 1.0
    longest: Longest = 256
    rate: Rate = 2e-3
    # A bound against files that never end; no choice for a user.
    most: Annotated[int, AtLeast(1), NoFlag(), "pairs that are read"] = 1 << 20
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # All heads have one size.
        if self.width % HEAD:
            raise RequestError(f"width is {self.width}: it must be a multiple of {HEAD}")


COMMAND = TrainingCommand(
    "plan-extractor",
    "Train what plans which clauses of a source a text is to say, for plan-guided; prints JSON.",
    PlanExtractorSpec,
    "polydec.lab.train.plan_extractor:train_plan_extractor",
)
