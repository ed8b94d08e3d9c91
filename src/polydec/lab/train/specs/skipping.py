"""What `polydec train skipping` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, NoFlag, keep_ranges
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
class SkippingSpec:
    """What `train_skipping` makes, of a target of the Llama skeleton.

    Published: all weights but the embeddings, a rate of 2e-5, two rounds.

    Attributes:
        speed: As of the method that the model will serve.
        even: As of the method that the model will serve.
        longest: Tokens of a text that are read.
    """

    out: Kept
    target: Target = "zoo:tiny"
    data: Data = None
    text: Samples = None
    each: Each = 60
    max_tokens: Longest = 128
    speed: Annotated[
        float, AtLeast(1), "layers of the model for each one that runs behind a prompt"
    ] = 1.3
    even: Annotated[
        bool, "layers as evenly spaced as can be (false, --no-even: the published rule)"
    ] = True
    lora: Lora = 8
    rows: Annotated[int, AtLeast(1), "texts a step"] = 8
    steps: Steps = 300
    rate: Annotated[float, GreaterThan(0), "highest learning rate"] = 2e-3
    longest: Annotated[int, AtLeast(2), NoFlag(), "tokens of a text"] = 512
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "skipping",
    "Tune a model to write with few of its layers (Unified Layer Skipping); prints what was measured as one JSON object.",
    SkippingSpec,
    "polydec.lab.train.skipping:train_skipping",
)
