"""What `polydec train diffusion` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand, task_training_summary
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    OwnPairs,
    QuestionDropout,
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
from polydec.lab.train.tasks import LONG, SHIPPED, TASKS, draw_task


@dataclass(frozen=True)
class DiffusionSpec:
    """What `train_diffusion` makes.

    Tasks take turns; all rows of a step are equally long, filled with EOS.

    Attributes:
        long: Every other step has fewer and longer rows of tasks that go on (LONG). 0: never, and
            all tasks take turns in each step.
        pairs: Each is seen as often as any other, with up to `length` positions.
        vocab: The mask is one more.
        muon: Learning rate of Muon for the layers' matrices.
        start: A masked-diffusion or autoregressive model, whose tokenizer and sizes are taken.
        anneal: Steps in which more and more of the later positions becomes visible.
        block: Positions see no further than to the end of their own block.
        drop: A question that is left out is gaps, as under `llada` with guidance; to a causal model
            it is empty, as an empty negative prompt is.
        lora: The kind of the model stays: causal, shifted and block are those of start.
        int8: Weights in half a file, which only Polydec reads.
        width: Width of the network, a multiple of 32.
    """

    out: Resumed
    tasks: Tasks = SHIPPED + LONG
    pairs: OwnPairs = None
    vocab: Annotated[int, InRange(260, 65536), "tokens of the tokenizer that is trained"] = 416
    steps: Steps = 4000
    rows: TasksAStep = 64
    shortest: Annotated[
        int, AtLeast(16), "positions of the shortest rows, task and answer together"
    ] = 28
    length: Annotated[int, InRange(16, 4096), "positions of the longest rows"] = 36
    long: Annotated[int, "positions of the longest rows of tasks that go on (0: as others)"] = 0
    width: Width = 128
    layers: Layers = 4
    seed: Seed = 0
    save_every: SaveEvery = 100
    rate: AdamRate = 2e-3
    muon: MuonRate = 0.02
    start: Start = None
    lora: StartLora = 0
    anneal: Annotated[
        int, AtLeast(0), "steps in which an autoregressive start learns to look ahead"
    ] = 0
    shifted: Annotated[bool, "a position's law is read one before it, as in Dream"] = False
    block: Annotated[int, AtLeast(0), "block-causal, in blocks of so many positions (0: not)"] = 0
    causal: Annotated[bool, "an autoregressive model of the same tasks, to compare"] = False
    drop: QuestionDropout = 0.0
    unroll: Annotated[
        int,
        InRange(0, 4),
        "learn to mend random tokens in place of gaps, for rum-sundae, in so many steps of which each reads what the one "
        "before wrote (0: gaps)",
    ] = 0
    int8: Annotated[bool, "keep matrices in 8 bits"] = False
    varied: Varied = False

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.shortest > self.length:
            raise RequestError(
                f"shortest is {self.shortest}: it must lie in 16 to length ({self.length})"
            )
        if self.long and not self.length <= self.long <= 4096:
            raise RequestError(
                f"long is {self.long}: it must be 0, or lie in length ({self.length}) to 4096"
            )
        # Steps alternate between long and other tasks, so there must be some of both.
        if self.long and len({name in LONG for name in self.tasks}) < 2:
            raise RequestError(
                f"long is {self.long}: tasks must have some of {', '.join(LONG)}, and others"
            )
        if self.width % 32:
            raise RequestError(f"width is {self.width}: it must be a multiple of 32")
        if self.lora and (self.start is None or self.int8 or self.anneal):
            raise RequestError(
                f"lora is {self.lora}: an adapter changes the checkpoint of --start as it is, so leave int8 and anneal out"
            )
        if self.causal and (self.block or self.shifted or self.anneal):
            raise RequestError(
                "causal is on: block, shifted and anneal are of masked-diffusion models"
            )
        if self.unroll and (self.block or self.causal or self.anneal):
            raise RequestError(
                f"unroll is {self.unroll}: it is of models whose positions see the whole row, so leave block, causal and "
                "anneal out"
            )
        if not self.tasks:
            raise RequestError(f"tasks is empty: name some of {', '.join(TASKS)}")
        if self.pairs is not None and (self.long or self.tasks != SHIPPED + LONG or self.varied):
            raise RequestError(
                f"pairs is {self.pairs!r}: they are learned in place of tasks, so leave out tasks, long and varied"
            )
        # Raises for unknown names.
        for name in self.tasks:
            draw_task(name, 0, 0)

    @property
    def most(self) -> int:
        """Positions of the longest row."""
        return max(self.length, self.long)


COMMAND = TrainingCommand(
    "diffusion",
    "Train a small masked-diffusion model on tasks that are generated; says how long it will take.",
    DiffusionSpec,
    "polydec.lab.train.diffusion:train_diffusion",
    sentence=task_training_summary,
)
