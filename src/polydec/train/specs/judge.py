"""What `polydec train judge` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import Above, AtLeast, PythonOnly, keep_ranges
from polydec.train.specs.command import Command
from polydec.train.specs.fields import (
    Data,
    Each,
    Kept,
    Longest,
    Samples,
    Seed,
    SmallDraft,
    Steps,
    Target,
)


@dataclass(frozen=True)
class JudgeSpec:
    """What `train_judge` makes. text: without it the target writes out/text.jsonl first, greedily."""

    out: Kept
    target: Target = "zoo:tiny"
    draft: SmallDraft = None
    data: Data = None
    text: Samples = None
    each: Each = 30
    max_tokens: Longest = 96
    tries: Annotated[int, AtLeast(1), "drafted tokens that are tried in each answer"] = 4
    weight: Annotated[float, Above(0), PythonOnly(), "of wrong tokens in the loss"] = 2.0
    steps: Steps = 300
    rate: Annotated[float, Above(0), PythonOnly(), "highest learning rate"] = 1e-2
    seed: Seed = 0

    def __post_init__(self) -> None:
        keep_ranges(self)

    @property
    def temperature(self) -> float:
        """Answers are greedy: that is what a result is compared with."""
        return 0.0


COMMAND = Command(
    "judge",
    "Train the probe that keeps right tokens for judge-decoding; prints what was measured as one JSON object.",
    JudgeSpec,
    "polydec.train.judge:train_judge",
)
