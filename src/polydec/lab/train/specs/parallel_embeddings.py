"""What `polydec train parallel-embeddings` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.options import AtLeast, GreaterThan, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import HeadRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class ParallelEmbeddingsSpec:
    """What `train_parallel_embeddings` makes: prefixes behind which one input has several embeddings.

    Attributes:
        information: Weight of the estimated mutual information of each two paths; 0: paths may say
            the same.
        joined: Weight of the contrastive loss of the mean over paths, beside those of each path.
        estimator_steps: Steps that the estimator of mutual information takes for each step of the
            prefixes, so that it does not lag behind.
        heat: What cosines are divided by in the contrastive loss.
    """

    out: Resumed
    target: Annotated[str, "the model that reads: a name like --model's"] = "zoo:vision"
    data: Annotated[
        str | None,
        "folder with questions.jsonl (rows of prompt, answer and image, a file of the folder), or pairs of texts: .jsonl "
        "(source and target, or a question with its answer) or a folder of these (default: questions about scenes that are "
        "drawn here)",
    ] = None
    each: Annotated[int, AtLeast(2), "scenes that are asked about (without data)"] = 600
    paths: Annotated[int, InRange(1, 64), "embeddings of an input"] = 3
    prefix: Annotated[int, InRange(1, 1024), "learned vectors before the input of each path"] = 8
    rank: Annotated[int, InRange(0, 4096), "of adapters that all paths share (0: none)"] = 8
    information: Annotated[
        float, AtLeast(0), "weight of the mutual information of each two paths (0: not minimised)"
    ] = 0.1
    joined: Annotated[
        float, AtLeast(0), "weight of the loss of the mean over paths, beside that of each path"
    ] = 1.0
    estimator_steps: Annotated[
        int, AtLeast(1), "steps of the information's estimator for each step of the prefixes"
    ] = 4
    heat: Annotated[float, GreaterThan(0), "temperature of the contrastive loss"] = 0.1
    steps: Steps = 300
    rows: Annotated[int, AtLeast(2), "pairs of a step"] = 32
    rate: HeadRate = 3e-3
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


def parallel_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    single = ", ".join(f"{share:.1%}" for share in result["retrieved_by_path"])
    model = f"--model {result['out']} " if result["adapted"] else ""
    return (
        f"held-out pairs: {result['retrieved']:.1%} nearest to their own among {result['among']} "
        f"(single paths: {single}); cosine of two paths {result['alike']:.3f}\n"
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s; written to "
        f"{result['out']} (polydec embed {model}--with {result['out']}/prefixes)"
    )


COMMAND = TrainingCommand(
    "parallel-embeddings",
    "Train prefixes behind which a model gives several embeddings of one input that tell little of one another (PDF; "
    "`polydec embed`).",
    ParallelEmbeddingsSpec,
    "polydec.lab.train.parallel_embeddings:train_parallel_embeddings",
    sentence=parallel_training_summary,
)
