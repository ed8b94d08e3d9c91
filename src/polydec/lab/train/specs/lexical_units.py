"""What `polydec train lexical-units` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    Kept,
    Longest,
    Lora,
    Samples,
    SaveEvery,
    Seed,
    Steps,
    Target,
)


@dataclass(frozen=True)
class LexicalSpec:
    """What `train_lexical` makes, of a target of the Llama skeleton.

    The paper's rate, steps, alpha and k are not known to us.

    Attributes:
        longest: Tokens of a text that are read.
    """

    out: Kept
    target: Target = "zoo:tiny"
    data: Data = None
    text: Samples = None
    each: Each = 60
    max_tokens: Longest = 128
    ahead: Annotated[int, InRange(1, 16), "pads, and so tokens of a span behind its first"] = 3
    alpha: Annotated[
        float, InRange(0, 1), "probability from which on a token belongs to the span before it"
    ] = 0.9
    lora: Lora = 16
    rows: Annotated[int, AtLeast(1), "texts a step"] = 8
    steps: Steps = 300
    rate: Annotated[float, GreaterThan(0), "highest learning rate"] = 2e-3
    longest: Annotated[int, AtLeast(2), NoFlag(), "tokens of a text"] = 256
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "lexical-units",
    "Tune a model and its pads to write sure spans at once (LUD); prints what was measured as one JSON object.",
    LexicalSpec,
    "polydec.lab.train.lexical:train_lexical",
)
