"""What `polydec train stop-head` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, InRange, LessThan, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
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
class StopHeadSpec:
    """What `train_stop_head` makes.

    text: without it the target writes out/text.jsonl first. mixing: share of positions at which the draft reads the target's
    token and not its own. tied: one block, applied `depth` times.
    """

    out: Kept
    target: Target = "zoo:smollm2"
    draft: SmallDraft = None
    data: Data = None
    text: Samples = None
    each: Each = 30
    max_tokens: Longest = 128
    temperature: Annotated[float, AtLeast(0), "at which the head will be used (0: greedy)"] = 1.0
    mixing: Annotated[
        float,
        AtLeast(0),
        LessThan(1),
        "share of the target's own tokens in what the draft reads",
    ] = 0.15
    weight: Annotated[float, GreaterThan(0), "of rejections in the loss"] = 6.0
    depth: Annotated[int, InRange(0, 16), "blocks of the head"] = 3
    tied: Annotated[bool, "one block, applied depth times (as the authors' code has it)"] = False
    rounds: Annotated[int, AtLeast(1), NoFlag(), "draws of the draft's tokens for each text"] = 2
    steps: Steps = 400
    rows: Annotated[int, AtLeast(1), NoFlag(), "positions a step"] = 512
    rate: Annotated[float, GreaterThan(0), NoFlag(), "highest learning rate"] = 1e-3
    seed: Seed = 0

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "stop-head",
    "Train the head that ends drafts for specdec-plus-plus; prints what was measured as one JSON object.",
    StopHeadSpec,
    "polydec.lab.train.stop_head:train_stop_head",
)
