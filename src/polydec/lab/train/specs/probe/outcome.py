"""What `polydec train probe --recipe outcome` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, NoFlag, keep_ranges
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
    Steps,
    Target,
)


@dataclass(frozen=True)
class OutcomeSpec:
    """A head that says of each next token whether the finished text will be as wanted.

    Attributes:
        text: None: the target writes out/text.jsonl first.
        holds: What is wanted of a finished text, with least and most.
    """

    recipe: ClassVar[str] = "outcome"

    out: Kept
    target: Target = "zoo:tiny"
    data: Data = None
    text: Samples = None
    each: Each = 100
    max_tokens: Longest = 64
    temperature: Annotated[float, AtLeast(0), "at which the target writes"] = 1.0
    holds: Annotated[str, "a piece of text that is wanted in a finished text"] = ""
    least: Annotated[int, AtLeast(0), "tokens wanted of it at least, its end counted"] = 0
    most: Annotated[int, AtLeast(0), "tokens wanted of it at most (0: any number)"] = 0
    inner: Annotated[int, AtLeast(1), "units of the head"] = 64
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), NoFlag(), "positions a step"] = 512
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.holds and not self.least and not self.most:
            raise RequestError(
                "holds is empty: say what is wanted of a finished text (holds, least, most)"
            )


COMMAND = probe_command(OutcomeSpec, "the head of conditional-beam on a model's own texts")
