"""What `polydec train insertion` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand, task_training_summary
from polydec.lab.train.specs.diffusion import DiffusionSpec
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    Resumed,
    SaveEvery,
    Seed,
    Start,
    StartLora,
    Steps,
    Tasks,
    TasksAStep,
    Varied,
    Width,
)
from polydec.lab.train.tasks import LONG, SHIPPED


@dataclass(frozen=True)
class InsertionSpec:
    """What `train_insertion` makes. Tasks take turns; their answers must end.

    Attributes:
        muon: Learning rate of Muon for the layers' matrices.
        start: A model whose tokenizer and sizes are taken.
        width: Width of the network, a multiple of 32.
    """

    out: Resumed
    tasks: Tasks = SHIPPED
    steps: Steps = 4000
    rows: TasksAStep = 64
    context: Annotated[
        int, InRange(32, 4096), "positions of the longest text, task and answer together"
    ] = 128
    width: Width = 128
    layers: Layers = 4
    seed: Seed = 0
    save_every: SaveEvery = 100
    rate: AdamRate = 2e-3
    muon: MuonRate = 0.02
    start: Start = None
    lora: StartLora = 0
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)
        # An insertion model stops when nothing is missing, so an answer must have an end.
        if endless := [name for name in self.tasks if name in LONG]:
            raise RequestError(
                f"tasks has {endless[0]!r}: its answers go on, and an insertion model writes whole ones"
            )
        self.begin_samples()  # refuses wrong tasks and widths

    def begin_samples(self) -> DiffusionSpec:
        """The spec of the masked-diffusion network that training begins with."""
        return DiffusionSpec(
            self.out,
            self.tasks,
            length=self.context,
            width=self.width,
            layers=self.layers,
            seed=self.seed,
            start=self.start,
            lora=self.lora,
            varied=self.varied,
        )


COMMAND = TrainingCommand(
    "insertion",
    "Train a small insertion language model on tasks that are generated; says how long it will take.",
    InsertionSpec,
    "polydec.lab.train.insertion:train_insertion",
    sentence=task_training_summary,
)
