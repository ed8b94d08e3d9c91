"""What `polydec train ngrams` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Kept, Samples, Seed

MANY = InRange(1, 1 << 20)


@dataclass(frozen=True)
class NGramSpec:
    """What `train_ngrams` makes.

    Attributes:
        text: A file of samples; without it the target writes out/text.jsonl first.
        corpus: A plain text that is counted in place of text and data.
    """

    out: Kept
    target: Annotated[str, "the model whose text to count: a name like --model's"] = "zoo:smollm2"
    data: Data = None
    text: Samples = None
    each: Annotated[int, MANY, "prompts of each kind that the target answers"] = 300
    max_tokens: Annotated[int, MANY, "of an answer"] = 160
    order: Annotated[int, InRange(1, 8), "tokens of the longest context"] = 4
    top: Annotated[int, InRange(1, 16), "next tokens kept of each context"] = 3
    least: Annotated[int, MANY, "in how many answers a context must stand"] = 2
    discount: Annotated[float, InRange(0, 1), NoFlag(), "of every count"] = 0.75
    seed: Seed = 0
    as_counted: Annotated[
        bool,
        "keep every continuation with its count, in place of the likeliest ones, discounted "
        "(superposed-decoding --set as_counted=true); top and least are not read",
    ] = False
    corpus: Annotated[
        str | None, "plain text (UTF-8) to count instead, each of its paragraphs for itself"
    ] = None

    def __post_init__(self) -> None:
        keep_ranges(self)
        # A corpus has no prompts, so nothing is written.
        if self.corpus is not None and (self.text, self.data) != (None, None):
            raise RequestError(
                "corpus is given, and so is text or data: a table is counted in one of them, leave out the others"
            )


COMMAND = TrainingCommand(
    "ngrams",
    "Count what a target writes, or your own text, as a draft that costs no pass; prints what was measured as JSON.",
    NGramSpec,
    "polydec.lab.train.ngrams:train_ngrams",
)
