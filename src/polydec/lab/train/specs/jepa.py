"""What `polydec train jepa` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.options import AtLeast, GreaterThan, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import HeadRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class JepaSpec:
    """What `train_jepa` makes: an answer embedder of a vision-language model.

    Attributes:
        slow: How fast the layers that read answers learn, as a share of the others' rate: an
            embedding that answers are held to should move slowly.
        heat: What cosines are divided by in the loss that holds foretold and read embeddings together.
    """

    out: Resumed
    target: Annotated[str, "the target, which must read images: a name like --model's"] = (
        "zoo:vision"
    )
    data: Annotated[
        str | None,
        "folder with questions.jsonl, rows of prompt, answer and image, a file of the folder (default: questions about scenes "
        "that are drawn here)",
    ] = None
    each: Annotated[int, AtLeast(2), "scenes that are asked about (without data)"] = 600
    steps: Steps = 1200
    rows: Annotated[int, AtLeast(2), "images a step, of which each is asked one question"] = 64
    foretelling: Annotated[int, InRange(1, 64), "layers that read image and question"] = 3
    reading: Annotated[int, InRange(1, 64), "layers that read an answer"] = 2
    size: Annotated[int, InRange(2, 4096), "numbers of an embedding"] = 128
    shown: Annotated[
        int, InRange(1, 1024), "vectors that stand for an embedding where it is put into words"
    ] = 8
    # The usual value of the loss; the paper's was not found.
    heat: Annotated[float, GreaterThan(0), "temperature of the contrastive loss"] = 0.1
    # Published in words alone: this share is ours.
    slow: Annotated[
        float, InRange(0, 1), "rate of the layers that read answers, as a share of the others'"
    ] = 0.1
    rate: HeadRate = 1e-3
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        # Ranges hold in Python, too.
        keep_ranges(self)


def jepa_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    return (
        f"held-out answers: {result['retrieved']:.1%} nearest to their own among {result['among']}, "
        f"{result['held_out_nats']:.3f} nats a token when put into words\n{result['parameters']:,} parameters, "
        f"{result['steps']:,} steps, {result['seconds']:.0f} s; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "jepa",
    "Train an answer embedder for a model that reads images: it foretells the embedding of an answer, which is put into words "
    "only when it changes (VL-JEPA; `polydec watch`).",
    JepaSpec,
    "polydec.lab.train.jepa:train_jepa",
    sentence=jepa_training_summary,
)
