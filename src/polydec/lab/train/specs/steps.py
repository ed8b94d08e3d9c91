"""What `polydec train steps` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, CommaList, InRange, OneOf, ParseAs, keep_ranges
from polydec.lab.train.automata import BUDGETS, TASKS
from polydec.lab.train.specs.command import TrainingCommand, task_training_summary
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
)

HEAD = 32
"""Of an attention head, so a width is a multiple of it."""

LONGEST = 256
"""Symbols of a word."""


@dataclass(frozen=True)
class StepsSpec:
    """What `train_steps` makes.

    budgets: a row's is drawn uniformly, and its mark tells the model how many steps it may write. lengths: of the words that
    are learned from, drawn uniformly. longest: up to it a word is padded; longer ones cannot be asked.
    """

    out: Resumed
    task: Annotated[str, OneOf(*TASKS), "the automaton (docs/steps.md)"] = "s5"
    budgets: Annotated[tuple[str, ...], ParseAs(CommaList), f"of {', '.join(BUDGETS)}"] = tuple(
        BUDGETS
    )
    steps: Steps = 450
    rows: Annotated[int, AtLeast(1), "words a step"] = 64
    lengths: Annotated[
        tuple[int, ...], InRange(1, LONGEST), "symbols of the words that are learned from"
    ] = (4, 8, 16, 32)
    longest: Annotated[
        int, InRange(1, LONGEST), "symbols of the longest word that can be asked"
    ] = 40
    width: Annotated[int, InRange(HEAD, 1024), "of the network, a multiple of 32"] = 128
    layers: Layers = 2
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.width % HEAD:
            raise RequestError(f"width is {self.width}: it must be a multiple of {HEAD}")
        for name in self.budgets:
            if name not in BUDGETS:
                raise RequestError(f"budgets has {name!r}: it must be of {', '.join(BUDGETS)}")
        if not self.budgets or not self.lengths:
            raise RequestError("budgets and lengths must each have a value at least")
        if max(self.lengths) > self.longest:
            raise RequestError(
                f"lengths has {max(self.lengths)}: longest is {self.longest}, and no word is longer"
            )


COMMAND = TrainingCommand(
    "steps",
    "Train a small model on word problems of an automaton, with as many steps before the answer as a mark allows.",
    StepsSpec,
    "polydec.lab.train.steps:train_steps",
    sentence=task_training_summary,
)
