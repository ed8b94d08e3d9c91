"""What `polydec train probes` can be told."""

from __future__ import annotations

from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.states import ENTRY, OF_EAGLES, StatesSpec, kind_help

COMMAND = TrainingCommand(
    "probes",
    "Train probes that ride in the target's own pass; prints what was measured as one JSON object.",
    StatesSpec,
    ENTRY,
    spelled={"levels": "--probes"},
    defaults={"kind": "ppd"},
    helps={
        "kind": kind_help("probes"),
        "levels": "how many tokens ahead are guessed (0: 3 or 4)",
    },
    without=OF_EAGLES,
)
