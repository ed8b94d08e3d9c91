"""What every training of a drafter behind images can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.fields import (
    AnswersAStep,
    HeadRate,
    Longest,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
)


@dataclass(frozen=True)
class ImageDrafterSpec:
    """What a drafter behind images learns from, and how.

    Attributes:
        each: Of scenes: how many are drawn, each of which is asked about in all ways.
        features: Weight of the distance of guessed states beside the target's laws; the published
            trainings have 10.
        noise: Width of the uniform noise on the states that enter, in a text of 512 tokens, and so
            much wider in a shorter one; the published trainings have 0.2.
    """

    out: Resumed
    target: Annotated[str, "the target, which must read images: a name like --model's"] = (
        "zoo:vision"
    )
    data: Annotated[
        str | None,
        "folder with questions.jsonl, rows of prompt and, for some, image, a file of the folder (default: questions about "
        "scenes that are drawn here)",
    ] = None
    each: Annotated[int, AtLeast(1), "scenes that are asked about (without data)"] = 100
    max_tokens: Longest = 48
    temperature: Annotated[float, AtLeast(0), "at which answers are written (0: greedy)"] = 1.0
    staged: Annotated[
        bool,
        "texts without images first, then more and more with them (false: half and half all the time)",
    ] = True
    features: Annotated[float, AtLeast(0), "weight of the distance of states (published: 10)"] = 1.0
    noise: Annotated[
        float, AtLeast(0), "width of the noise on states, in 512 tokens (published: 0.2)"
    ] = 0.0
    steps: Steps = 600
    rows: AnswersAStep = 16
    rate: HeadRate = 2e-3
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


def image_drafter_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    tokens = ", ".join(f"{name} {value:.2f}" for name, value in result["tokens_per_pass"].items())
    return (
        f"held-out questions, tokens a pass: {tokens}\n{result['parameters']:,} parameters, "
        f"{result['steps']:,} steps, {result['seconds']:.0f} s; written to {result['out']}"
    )
