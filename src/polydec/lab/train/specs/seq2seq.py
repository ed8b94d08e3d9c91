"""What `polydec train seq2seq` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps

HEAD = 32
"""Of an attention head, so a width is a multiple of it."""

Pairs = Annotated[
    str,
    "pairs: .jsonl (source and target, or a question with its answer), a folder of these or of a data set (Arrow, Parquet)",
]
TokensAStep = Annotated[int, AtLeast(64), "positions of a step, what fills pairs up included"]
Longest = Annotated[
    int, InRange(2, 2048), "tokens of a source, and of a target; longer pairs are left out"
]


@dataclass(frozen=True)
class Seq2SeqSpec:
    """What `train_seq2seq` makes.

    Attributes:
        inner: Units of the MLPs; 0: four times the width.
        parts: Buckets by the source's length, and of each by the target's.
        smooth: Share of a label that goes to all tokens alike.
        plans: Sources are learned without marks, with marks around the clauses that the text says, and
            unlearned with marks around others.
        drop: A source that is left out is an empty text, as an empty negative prompt is.
        memory: Rows of a step are searched for each bucket then, in place of `tokens`. What is counted
            is what a pass keeps for its gradients, in bytes.
        outliers: Medians are of target tokens a source token, among sources of like length.
        teacher: Model of `train lm --pairs` with the same tokens. A step's texts are drawn by the model
            that is trained.
        taught: Of the loss; the rest is that of the targets of the data.
    """

    out: Resumed
    data: Pairs
    steps: Steps = 2000
    tokens: TokensAStep = 3072
    memory: Annotated[
        float,
        AtLeast(0),
        "megabytes that a step may keep for its gradients, by which its pairs are counted (0: by --tokens)",
    ] = 0.0
    outliers: Annotated[
        float,
        AtLeast(0),
        "leave out pairs whose targets are so many times as long as is usual for their sources (0: none)",
    ] = 0.0
    encoder: Annotated[int, InRange(1, 64), "layers of the encoder"] = 6
    decoder: Annotated[int, InRange(1, 64), "layers of the decoder"] = 2
    width: Annotated[int, InRange(32, 4096), "of the network, a multiple of 32"] = 128
    inner: Annotated[int, InRange(0, 1 << 16), "of its MLPs (0: four times the width)"] = 0
    vocab: Annotated[int, InRange(260, 65536), "tokens of the tokenizer that is trained"] = 1024
    tokenizer: Annotated[
        str | None, "directory or zoo:NAME whose tokenizer to use (default: train one)"
    ] = None
    longest: Longest = 128
    smooth: Annotated[float, InRange(0, 0.9), "share of a label that all tokens get alike"] = 0.0
    drop: Annotated[
        float,
        InRange(0, 1),
        "share of the sources that are left out, so that guidance knows the law without one (0: none)",
    ] = 0.0
    teacher: Annotated[
        str | None,
        "model without an encoder that teaches on texts that this one draws (train lm --pairs)",
    ] = None
    taught: Annotated[float, InRange(0, 1), "share of the loss that is the teacher's"] = 0.9
    heat: Annotated[float, GreaterThan(0), "temperature of the texts that are drawn"] = 0.9
    top: Annotated[int, AtLeast(1), "likeliest tokens that they are drawn from"] = 128
    plans: Annotated[
        bool, "learn to write what is marked in the source, for plan-guided (docs/sources.md)"
    ] = False
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    parts: Annotated[tuple[int, int], NoFlag(), "buckets by both lengths"] = (8, 3)
    most: Annotated[int, AtLeast(1), NoFlag(), "pairs that are read"] = 1 << 20
    warmup: Annotated[float, GreaterThan(0), NoFlag(), "share of the steps"] = 0.05
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # All heads have one size.
        if self.width % HEAD:
            raise RequestError(f"width is {self.width}: it must be a multiple of {HEAD}")
        if self.plans and self.drop:
            raise RequestError(
                f"drop is {self.drop} and plans is true: a source that is left out has no clauses; leave one of them out"
            )
        if self.outliers and self.outliers < 1:
            raise RequestError(
                f"outliers is {self.outliers}: it must be at least 1, or 0 for none: half of all pairs lie below 1"
            )
        if self.teacher is not None and (self.plans or self.drop):
            raise RequestError(
                f"teacher is {self.teacher!r} beside plans or drop: it reads each source as it is, so leave these out"
            )
        if min(self.parts) < 1:
            raise RequestError(f"parts is {self.parts}: both must be at least 1")


def seq2seq_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    # Small data may have no held-out pair.
    right = ""
    if result["held_out_nats"] is not None:
        right = (
            f"held out: {result['held_out_nats']:.3f} nats a token, {result['held_out_right']:.1%} of tokens right, "
            f"{result['held_out_whole']:.1%} of texts wholly (each token behind the right ones)\n"
        )
    return (
        f"{right}{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s, "
        f"{result['padding']:.0%} of positions filled up; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "seq2seq",
    "Train a small encoder-decoder model from pairs of a source and a text: any depth of either, as a T5 directory.",
    Seq2SeqSpec,
    "polydec.lab.train.seq2seq:train_seq2seq",
    sentence=seq2seq_training_summary,
)
