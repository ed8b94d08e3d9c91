"""What `polydec train context` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, NoFlag, OneOf, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand, task_training_summary
from polydec.lab.train.specs.fields import (
    AdamRate,
    Layers,
    MuonRate,
    Resumed,
    SaveEvery,
    Seed,
    Steps,
    Width,
    require_full_step,
)

KINDS = ("continuous-cot", "hidden-cot", "refrag", "cache-augmentation", "arc-encoder")
"""What can be trained: the files of train/contexts."""

ON_OWN_TEXT = ("continuous-cot", "hidden-cot", "refrag", "cache-augmentation")
"""What can be trained for a model and a text of one's own: the files of train/own_contexts."""


@dataclass(frozen=True)
class ContextSpec:
    """What `train_context` makes.

    Attributes:
        kind: What stands in the place of words.
        reasoning: What stands between a question and its answer; the other two values are controls.
        nodes: Nodes of the graphs of continuous-cot.
        hops: Depth of these graphs, or steps of a sum.
        width: Width of the network, a multiple of 32.
        muon: Learning rate of Muon for the layers' matrices; nothing of a model of one's own is
            trained by it.
        data: Without it a small model is trained, on tasks that are generated.
        tries: Held-out texts or questions that are measured.
    """

    out: Resumed
    kind: Annotated[str, OneOf(*KINDS), "what is trained"] = "continuous-cot"
    reasoning: Annotated[
        str,
        OneOf("latent", "chain", "none"),
        "before the answer: vectors, the written steps, or nothing",
    ] = "latent"
    data: Annotated[
        str | None,
        "your own text for your own --target: .jsonl with question, thought and answer (continuous-cot, hidden-cot); running "
        "text as for the other commands, or `sample` (refrag, cache-augmentation); default: tasks are generated",
    ] = None
    texts: Annotated[int, AtLeast(1), "texts of --data to learn from, at most"] = 1000
    length: Annotated[
        int,
        InRange(8, 4096),
        "tokens of a text of --data (refrag: half of them are the passage)",
    ] = 64
    chunk: Annotated[int, InRange(2, 256), "tokens of a chunk of --data (refrag)"] = 8
    tries: Annotated[int, AtLeast(1), NoFlag(), "held-out texts of --data that are measured"] = 64
    target: Annotated[
        str | None,
        "with --data your own model: a directory that `polydec train lm` wrote, or zoo:NAME; without it a model that reads "
        "words, of an earlier run (refrag, cache-augmentation, arc-encoder; default: one is trained)",
    ] = None
    steps: Steps = 1600
    rows: Annotated[int, AtLeast(1), "questions a step"] = 32
    width: Width = 64
    layers: Layers = 2
    nodes: Annotated[int, InRange(4, 26), "of a graph (continuous-cot), an even number"] = 12
    hops: Annotated[
        int, InRange(1, 12), "steps of the longest question (continuous-cot: and thoughts)"
    ] = 3
    latents: Annotated[int, InRange(1, 64), "vectors behind a place (cache-augmentation)"] = 8
    encoder: Annotated[
        int, InRange(8, 4096), "width of what encodes chunks (refrag), a multiple of 8"
    ] = 16
    at_once: Annotated[bool, "all chunks from the first step on, without a curriculum (refrag)"] = (
        False
    )
    factor: Annotated[int, InRange(1, 64), "tokens for each vector (arc-encoder)"] = 2
    cut: Annotated[
        int,
        InRange(0, 64),
        "last layers that the encoder leaves out of the decoder's (arc-encoder)",
    ] = 1
    bottleneck: Annotated[
        int, InRange(1, 4096), "width between the two maps of the projector (arc-encoder)"
    ] = 48
    rewriting: Annotated[
        float, InRange(0, 1), "share of steps that write the passage once more (arc-encoder)"
    ] = 0.2
    pieces: Annotated[
        int,
        InRange(0, 4096),
        "bytes as which a vector of a passage can be kept, a code for each piece of it; they divide --bottleneck (arc-encoder; "
        "0: no codes are learned)",
    ] = 0
    decoders: Annotated[int, InRange(1, 4), "decoders that share an encoder (arc-encoder)"] = 1
    shared: Annotated[
        str | None,
        "an encoder of an earlier run (its folder arc), of which the projector alone is trained anew (arc-encoder)",
    ] = None
    rate: AdamRate = 3e-3
    muon: MuonRate = 0.02
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # The encoder has heads of 8, the networks heads of 16.
        if self.encoder % 8:
            raise RequestError(f"encoder is {self.encoder}: it must be a multiple of 8")
        if self.width % 32:
            raise RequestError(f"width is {self.width}: it must be a multiple of 32")
        if self.pieces and self.bottleneck % self.pieces:
            raise RequestError(
                f"pieces is {self.pieces}: it must divide bottleneck, which is {self.bottleneck}"
            )
        # Without a text of one's own the kind makes its tasks, and reads none of these options.
        if self.data is not None:
            self._require_own_text()

    def _require_own_text(self) -> None:
        """Raise RequestError where a model or a text of one's own cannot be taken."""
        if self.target is None:
            raise RequestError(
                f"data is {self.data!r}: name the model that is trained on it (--model)"
            )
        if self.kind not in ON_OWN_TEXT:
            raise RequestError(
                f"kind is {self.kind!r}: on a text of your own {', '.join(ON_OWN_TEXT)} can be trained"
            )
        require_full_step(self.texts, self.rows)


COMMAND = TrainingCommand(
    "context",
    "Train a small model that reads vectors in the place of words, or one that it is measured beside.",
    ContextSpec,
    "polydec.lab.train.context:train_context",
    sentence=task_training_summary,
)
