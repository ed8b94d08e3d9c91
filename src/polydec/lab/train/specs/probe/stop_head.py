"""What `polydec train probe --recipe stop-head` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.options import AtLeast, GreaterThan, InRange, LessThan, NoFlag, keep_ranges
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    HeadRate,
    Kept,
    Longest,
    Samples,
    SaveEvery,
    Seed,
    SmallDraft,
    Steps,
    Target,
)


@dataclass(frozen=True)
class StopHeadSpec:
    """A head that says whether a drafted token will be accepted (SpecDec++).

    Attributes:
        text: None: the target writes out/text.jsonl first.
        mixing: Share of positions at which the draft reads the target's token, not its own.
        tied: One block, applied `depth` times.
    """

    recipe: ClassVar[str] = "stop-head"

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
    rate: HeadRate = 1e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = probe_command(StopHeadSpec, "the head that ends drafts for specdec-plus-plus")
