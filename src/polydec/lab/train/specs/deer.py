"""What `polydec train deer` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, GreaterThan, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    AdamRate,
    AnswersAStep,
    Data,
    Each,
    Kept,
    Longest,
    MuonRate,
    Samples,
    SaveEvery,
    Seed,
    Steps,
    Target,
)


@dataclass(frozen=True)
class DeerSpec:
    """What `train_deer` makes, for a target of the Llama skeleton.

    Attributes:
        text: A file of samples; without it the target writes out/text.jsonl first.
        steps: Steps of the first stage.
        refine: Steps of the second stage, which follow.
    """

    out: Kept
    target: Target = "zoo:tiny"
    start: Annotated[
        str | None,
        "a model of the target's tokenizer to begin with, by a name like --model's (default: the target)",
    ] = None
    layers: Annotated[int, AtLeast(0), "of what it begins with the first ones (0: all)"] = 2
    data: Data = None
    text: Samples = None
    each: Each = 300
    max_tokens: Longest = 128
    temperature: Annotated[float, AtLeast(0), "of the text that the target writes"] = 0.7
    context: Annotated[int, AtLeast(16), "tokens of a prompt and its answer together"] = 512
    steps: Steps = 1000
    refine: Annotated[
        int, AtLeast(0), "steps of the second stage, close to the text that is known (0: none)"
    ] = 500
    last: Annotated[int, InRange(1, 64), "gaps of the second stage at most"] = 32
    decay: Annotated[
        float, GreaterThan(0), InRange(0, 1), "weight of a gap there, beside the one before it"
    ] = 0.9
    boundary: Annotated[bool, "a mark stands between the text that is known and the gaps"] = True
    shifted: Annotated[
        bool,
        "the law of a gap is read one position before it, where models that continue texts have theirs",
    ] = False
    rows: AnswersAStep = 16
    rate: AdamRate = 1e-3
    muon: MuonRate = 0.01
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "deer",
    "Train a masked-diffusion draft that goes on with a target's text, for deer and diffuspec; prints JSON.",
    DeerSpec,
    "polydec.lab.train.deer:train_deer",
)
