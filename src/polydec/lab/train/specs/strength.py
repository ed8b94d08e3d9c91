"""What `polydec train strength` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand


@dataclass(frozen=True)
class StrengthSpec:
    """What `find_strength` reads."""

    target: Annotated[str, "the tuned model: a name like --model's"]
    draft: Annotated[str, "the model before tuning"]
    data: Annotated[str, "JSON lines with prompt and answer that neither was tuned on"]
    head: Annotated[float, InRange(0, 1), "as of the steering"] = 0.1
    raw: Annotated[bool, "no chat template"] = False

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "strength",
    "Find the strength for `--steer svdecode` under which right answers are likeliest; prints one JSON object.",
    StrengthSpec,
    "polydec.lab.train.strength:find_strength",
)
