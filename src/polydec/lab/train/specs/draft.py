"""What `polydec train draft` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import (
    AtLeast,
    GreaterThan,
    InRange,
    NoFlag,
    OneOf,
    ParsedElsewhere,
    keep_ranges,
)
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    Kept,
    Longest,
    Samples,
    SaveEvery,
    Seed,
    Start,
    StartLora,
    Steps,
)

POLICIES: Mapping[str, float] = {
    "target": 0.0,
    "mixed": 0.5,
    "on-policy": 1.0,
}  # share of steps on the draft's own text


@dataclass(frozen=True)
class DraftSpec:
    """What `train_draft` makes, for a target of the Llama skeleton.

    Attributes:
        text: A file of samples; without it the target writes out/text.jsonl first.
        start: A draft that `train_draft` made, or any model with the target's tokens; it brings its
            layers, width and tokens.
        tasks: Pairs of a kind of prompt and its divergence.
        own: Share of steps on the draft's own text; None: what the policy says.
        tokens: How many of the most frequent tokens of the text the draft can propose.
        bf16: 16-bit arithmetic; None: where the machine multiplies it.
    """

    out: Kept
    target: Annotated[str, "the model to draft for: a name like --model's"] = "zoo:smollm2"
    data: Data = None
    start: Start = None
    lora: StartLora = 0
    text: Samples = None
    each: Each = 300
    max_tokens: Longest = 256
    divergence: Annotated[str, "fkl, rkl, jsd or tvd"] = "fkl"
    beta: Annotated[float, "of jsd"] = 0.5
    tasks: Annotated[
        tuple[tuple[str, str], ...],
        ParsedElsewhere(),
        "divergences of some kinds of prompts, such as code=rkl,summary=jsd",
    ] = ()
    policy: Annotated[str, OneOf(*POLICIES), "whose text it learns from"] = "target"
    own: Annotated[
        float | None, InRange(0, 1), "share of steps on the draft's own text (else: policy)"
    ] = None
    temperature: Annotated[float, GreaterThan(0), "of both laws"] = 1.0
    tokens: Annotated[int, AtLeast(0), "how many tokens it can propose (0: all)"] = 8192
    layers: Annotated[int, AtLeast(1), "of the draft"] = 1
    width: Annotated[int, AtLeast(0), "hidden width (0: the target's)"] = 0
    inner: Annotated[
        int, AtLeast(0), NoFlag(), "inner width (0: the target's share of the width)"
    ] = 0
    kv_heads: Annotated[
        int, AtLeast(0), NoFlag(), "heads of keys (0: the target's where the width is)"
    ] = 0
    steps: Steps = 600
    rows: Annotated[int, AtLeast(1), NoFlag(), "samples a step"] = 12
    rate: Annotated[float, NoFlag(), "highest learning rate of AdamW"] = 1e-3
    muon: Annotated[float, NoFlag(), "highest learning rate of Muon"] = 0.01
    context: Annotated[int, NoFlag(), "longest sequence in training"] = 1024
    seed: Seed = 0
    bf16: Annotated[bool | None, NoFlag(), "16-bit arithmetic (none: where the machine has it)"] = (
        None
    )
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        from polydec.lab.train.divergence import (
            divergence_by_name,  # loads torch, as flags do not need it
        )
        from polydec.lab.train.selfplay import SOURCES

        # Raises for unknown names, and for a beta out of range.
        for name in (self.divergence, *(d for _, d in self.tasks)):
            divergence_by_name(name, self.beta)
        for kind, _ in self.tasks:
            if kind not in SOURCES:
                raise RequestError(f"tasks names {kind!r}: it must be one of {', '.join(SOURCES)}")
        keep_ranges(self)
        if self.lora and self.start is None:
            raise RequestError(f"lora is {self.lora}: an adapter changes a draft, so give --start")
        # What a draft to begin with brings itself.
        for name in ("layers", "width", "tokens", "inner", "kv_heads") if self.start else ():
            if getattr(self, name) != getattr(DraftSpec, name):
                raise RequestError(
                    f"{name} is {getattr(self, name)}: {self.start} brings its own, so leave it out"
                )


def by_kind(text: str) -> tuple[tuple[str, str], ...]:
    """The divergences of some kinds of prompts, as the command line has them: code=rkl,summary=jsd."""
    # Empty parts are left out, so a comma at the end does no harm.
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return tuple((kind.strip(), name.strip()) for kind, _, name in pairs)


COMMAND = TrainingCommand(
    "draft",
    "Distil a small draft from a target; prints what was measured as one JSON object.",
    DraftSpec,
    "polydec.lab.train.draft:train_draft",
    reads={"tasks": by_kind},
)
