"""What `polydec train heads` can be told."""

from __future__ import annotations

from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.states import ENTRY, OF_EAGLES, StatesSpec

COMMAND = TrainingCommand(
    "heads",
    "Train draft heads on the target's last state; prints what was measured as one JSON object.",
    StatesSpec,
    ENTRY,
    spelled={"levels": "--heads"},
    defaults={"kind": "medusa"},
    helps={
        "kind": "medusa, hydra, hydra++, hydra++-deep (four blocks a head), hydra++-own (and a vocabulary matrix each), "
        "clover; for vLLM medusa-published",
        "levels": "how many tokens ahead are guessed (0: 3)",
    },
    without=(*OF_EAGLES, "copies", "enters"),
)
