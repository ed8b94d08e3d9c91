"""What `polydec train draft-tree` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Longest, Out, Seed


@dataclass(frozen=True)
class DraftTreeSpec:
    """What `count_draft_tree` counts."""

    out: Out
    target: Annotated[str, "the model whose drafts are counted: a name like --model's"] = (
        "zoo:smollm2"
    )
    data: Data = None
    each: Annotated[int, AtLeast(1), "prompts of each kind that are answered (published: 30)"] = 10
    answers: Annotated[int, AtLeast(1), "answers to a prompt, which share what was seen"] = 4
    max_tokens: Longest = 96
    temperature: Annotated[float, AtLeast(0), "at which they are drawn"] = 0.7
    places: Annotated[int, InRange(1, 1024), "of the tree in which is counted (published)"] = 625
    shortest: Annotated[int, InRange(1, 4), "shortest n-gram, as the method will have it"] = 2
    nodes: Annotated[int, InRange(1, 1024), "of the tree that is tried on held-out prompts"] = 80
    seed: Seed = 0

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "draft-tree",
    "Count which places of a drafted tree a target accepts (the tree of STAND); prints what was measured as JSON.",
    DraftTreeSpec,
    "polydec.lab.train.draft_tree:count_draft_tree",
)
