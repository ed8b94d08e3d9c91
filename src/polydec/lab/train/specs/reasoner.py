"""What `polydec train reasoner` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, LessThan, NoFlag, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import TrainingCommand, task_training_summary
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    Problems,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
    Width,
)

CONTEXT = 256
"""Positions of a reasoner."""


@dataclass(frozen=True)
class ReasonerSpec:
    """What `train_reasoner` makes.

    Kinds of problems take turns at random; each row is filled with problems.

    Attributes:
        width: Width of the network, a multiple of 32.
        flawed: Share of problems with a wrong step, which is judged and not learned.
        muon: Learning rate of Muon for the layers' matrices.
        start: A directory that this command wrote, of a network at most as large, whose law the
            network begins with (see grow.py).
        own: Problems of each kind that `start` solves at temperature 1; its solutions, right or
            wrong, are then what is judged and not learned.
    """

    out: Resumed
    kinds: Problems = tuple(problems.KINDS)
    steps: Steps = 1500
    rows: Annotated[int, AtLeast(1), "rows of 96 tokens a step"] = 16
    length: Annotated[int, InRange(96, CONTEXT), NoFlag(), "tokens of a row"] = 96
    width: Width = 256
    layers: Layers = 6
    experts: Annotated[
        int,
        InRange(0, 64),
        "MLPs of half the size that a layer has, two of them for a token (0: one of full size)",
    ] = 0
    flawed: Annotated[
        float, AtLeast(0), LessThan(1), "share of problems that are shown with a wrong step"
    ] = 0.5
    judging: Annotated[float, NoFlag(), "weight of the loss of that judgement"] = 1.0
    seed: Seed = 0
    save_every: SaveEvery = 100
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    start: Annotated[str | None, "directory of a smaller one, to begin with its law"] = None
    own: Annotated[
        int,
        AtLeast(0),
        "problems of each kind that it solves first: what it reads and judges (0: solutions with a slip)",
    ] = 0

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.own and self.start is None:
            raise RequestError(
                f"own is {self.own}: only a network that is named by start can draw solutions"
            )
        # One expert is an MLP with a useless router; and only networks without experts can be
        # grown.
        if self.experts == 1 or (self.experts and self.start is not None):
            raise RequestError(
                f"experts is {self.experts}: it must be 0, or at least 2 in a network that does not begin with another's law"
            )
        if self.width % 32:
            raise RequestError(f"width is {self.width}: it must be a multiple of 32")
        # Raises for unknown names.
        problems.require_kinds(self.kinds)


COMMAND = TrainingCommand(
    "reasoner",
    "Train a small model on problems in several steps that are generated and checked; says how long it will take.",
    ReasonerSpec,
    "polydec.lab.train.reasoner:train_reasoner",
    sentence=task_training_summary,
)
