"""What `polydec train eagle` can be told."""

from __future__ import annotations

from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.states import ENTRY, StatesSpec, kind_help

COMMAND = TrainingCommand(
    "eagle",
    "Train a layer with a cache of its own on the target's states; prints what was measured as one JSON object.",
    StatesSpec,
    ENTRY,
    defaults={"kind": "eagle"},
    helps={"kind": kind_help("eagle")},
    without=("copies", "enters"),
)
