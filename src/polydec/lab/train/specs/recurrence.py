"""What `polydec train recurrence` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Resumed, SaveEvery, Seed, Steps, require_full_step


@dataclass(frozen=True)
class RecurrenceSpec:
    """What `train_recurrence` makes.

    Attributes:
        alone: The same model and steps without vectors, to be measured beside.
        tries: Held-out texts that are measured.
    """

    out: Resumed
    target: Annotated[str, "the model: a directory that `polydec train lm` wrote, or zoo:NAME"] = (
        "zoo:tiny"
    )
    data: Data = None
    window: Annotated[int, InRange(4, 4096), "tokens of a window"] = 32
    windows: Annotated[int, InRange(2, 64), "windows of a text, one after another"] = 4
    texts: Annotated[int, AtLeast(1), "texts that are learned from"] = 4000
    alone: Annotated[bool, "no window sees anything of the one before"] = False
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), "texts a step"] = 8
    rate: Annotated[float, GreaterThan(0), "highest learning rate of AdamW"] = 3e-4
    tries: Annotated[int, AtLeast(1), NoFlag(), "held-out texts that are measured"] = 64
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        require_full_step(self.texts, self.rows)


def recurrence_summary(result: Mapping[str, Any]) -> str:
    """A table of what was measured."""
    rows = {
        "first windows": "nats_first",
        "later windows": "nats_later",
        "later windows of the model as it was, each alone": "nats_later_alone",
        "later windows of the model as it was, which reads all before": "nats_later_whole",
    }
    lines = [f"{said:<64}{result[key]:>8.3f} nats a token" for said, key in rows.items()]
    last = f"loss {result['loss']:.4f} nats after {result['steps']:,} steps; written to {result['out']}"
    return "\n".join([*lines, last])


COMMAND = TrainingCommand(
    "recurrence",
    "Tune a model to read texts in short windows, with one vector from each window to the next.",
    RecurrenceSpec,
    "polydec.lab.train.recurrence:train_recurrence",
    sentence=recurrence_summary,
)
