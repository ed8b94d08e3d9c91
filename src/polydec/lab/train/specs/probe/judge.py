"""What `polydec train probe --recipe judge` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, CommaList, GreaterThan, NoFlag, ParseAs, keep_ranges
from polydec.lab.train import problems
from polydec.lab.train.specs.command import probe_command
from polydec.lab.train.specs.fields import (
    Data,
    Each,
    HeadRate,
    Kept,
    Longest,
    Samples,
    SaveEvery,
    Seed,
    SmallDraft,
    Steps,
    Target,
)


@dataclass(frozen=True)
class JudgeSpec:
    """A judge of tokens that the target would not have written (judge decoding).

    Attributes:
        text: None: the target writes out/text.jsonl first, greedily.
        kinds: Of problems that both models solve and a checker labels, in place of `data` and
            `text`.
    """

    recipe: ClassVar[str] = "judge"

    out: Kept
    target: Target = "zoo:tiny"
    draft: SmallDraft = None
    data: Data = None
    text: Samples = None
    kinds: Annotated[
        tuple[str, ...],
        ParseAs(CommaList),
        "of chain, make, order: both models solve such problems, and a checker labels every token (default: the target "
        "goes on from tokens of the draft's, and its results say which were right)",
    ] = ()
    replies: Annotated[
        bool,
        "with kinds: learn from all tokens of both models' solutions, as published (default: from the draft's tokens where the "
        "target would put others, as a judge is asked of those alone)",
    ] = False
    each: Each = 30
    max_tokens: Longest = 96
    tries: Annotated[int, AtLeast(1), "drafted tokens that are tried in each answer"] = 4
    weight: Annotated[float, GreaterThan(0), NoFlag(), "of wrong tokens in the loss"] = 2.0
    steps: Steps = 300
    rate: HeadRate = 1e-2
    seed: Seed = 0
    save_every: SaveEvery = 50

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.kinds:
            problems.require_kinds(self.kinds)
            if self.text is not None:
                raise RequestError(
                    f"text is {self.text!r}: with kinds the solutions of both models are labelled, so leave it out"
                )
        elif self.replies:
            raise RequestError("replies is true: name the kinds of problems that both models solve")

    @property
    def temperature(self) -> float:
        """Answers are greedy: that is what a result is compared with."""
        return 0.0


COMMAND = probe_command(JudgeSpec, "the probe that keeps right tokens for judge-decoding")
