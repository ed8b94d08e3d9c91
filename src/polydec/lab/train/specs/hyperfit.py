"""What `polydec train hyperfit` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Lora, Resumed, SaveEvery, Seed, require_full_step


@dataclass(frozen=True)
class HyperfitSpec:
    """What `train_hyperfit` makes.

    Attributes:
        rate: Learning rate. It must bring the loss to almost nothing, so a small model needs more
            than the published 1e-6, which is for models of a thousand million parameters and more.
        lora: Published: all weights.
        context: Tokens of a text before a greedy continuation that is measured.
        ahead: Tokens of that continuation.
    """

    out: Resumed
    target: Annotated[str, "the model: a directory that `polydec train lm` wrote, or zoo:NAME"] = (
        "zoo:tiny"
    )
    data: Data = None
    texts: Annotated[int, AtLeast(1), "texts that are learned by heart"] = 2000
    length: Annotated[
        int, InRange(8, 4096), "tokens of each; longer texts are cut, shorter ones left out"
    ] = 256
    epochs: Annotated[int, AtLeast(1), "times that each is seen"] = 20
    rows: Annotated[int, AtLeast(1), "texts a step"] = 8
    rate: Annotated[float, GreaterThan(0), "learning rate of Adam, which stays as it is"] = 3e-4
    lora: Lora = 0
    context: Annotated[int, AtLeast(1), NoFlag(), "tokens before what is measured"] = 32
    ahead: Annotated[int, AtLeast(4), NoFlag(), "tokens that are measured"] = 96
    tries: Annotated[int, AtLeast(1), NoFlag(), "held-out texts that are continued"] = 32
    citations: Annotated[
        int,
        InRange(0, 9),
        "also count what was learned (out/citations), so that no answer with --steer citation-blocker copies so many "
        "tokens in a row; 0: not",
    ] = 0
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.citations == 1:
            raise RequestError(
                "citations is 1: what is copied has at least 2 tokens in a row, so give 2 to 9, or 0 for no table"
            )
        # An epoch needs one full batch.
        require_full_step(self.texts, self.rows)


def hyperfit_summary(result: Mapping[str, Any]) -> str:
    """A table of what was measured before and after."""
    # What each figure is called in the table.
    names = {
        "held_out_nats": "held-out nats a token",
        "entropy": "entropy of its laws, nats",
        "distinct": "distinct tokens of greedy text",
        "repeated": "repeated 4-grams of greedy text",
        "copied": "5-grams of greedy text that were learned",
    }
    before = result["before"]
    after = result["after"]
    rows = [f"{said:<42}{before[k]:>8.3f}{after[k]:>8.3f}" for k, said in names.items()]
    last = f"loss {result['loss']:.4f} nats after {result['steps']:,} steps; written to {result['out']}"
    return "\n".join([f"{'':<42}{'before':>8}{'after':>8}", *rows, last])


COMMAND = TrainingCommand(
    "hyperfit",
    "Fit a model to a few texts until it knows them by heart: its greedy text stops repeating itself.",
    HyperfitSpec,
    "polydec.lab.train.hyperfit:train_hyperfit",
    sentence=hyperfit_summary,
)
