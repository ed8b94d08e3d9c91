"""What `polydec train heads` can be told."""

from __future__ import annotations

from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.states import ENTRY, OF_EAGLES, StatesSpec, kind_help

COMMAND = TrainingCommand(
    "heads",
    "Train draft heads on the target's last state; prints what was measured as one JSON object.",
    StatesSpec,
    ENTRY,
    spelled={"levels": "--heads"},
    defaults={"kind": "medusa"},
    helps={
        "kind": kind_help("heads"),
        "levels": "how many tokens ahead are guessed (0: 3)",
    },
    without=(*OF_EAGLES, "copies", "enters"),
)
