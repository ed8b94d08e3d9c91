"""What `polydec train block-drafter` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import AtLeast, InRange, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps
from polydec.lab.train.specs.seq2seq import Longest, Pairs, TokensAStep


@dataclass(frozen=True)
class BlockDrafterSpec:
    """What `train_block_drafter` makes.

    Attributes:
        parts: Buckets by the source's length, and of each by the target's.
    """

    out: Resumed
    target: Annotated[str, "directory of a model of `polydec train seq2seq` to draft for"]
    data: Pairs
    block: Annotated[int, InRange(1, 64), "gaps that are filled at once (published: 25)"] = 8
    steps: Steps = 1000
    tokens: TokensAStep = 3072
    longest: Longest = 128
    glance: Annotated[
        float,
        InRange(0, 1),
        "share of its wrong gaps that it is shown at first; 0.6 of that at last",
    ] = 0.5
    smooth: Annotated[float, InRange(0, 0.9), "share of a label that all tokens get alike"] = 0.1
    rate: AdamRate = 2e-3
    muon: MuonRate = 0.02
    parts: Annotated[tuple[int, int], NoFlag(), "buckets by both lengths"] = (8, 3)
    most: Annotated[int, AtLeast(1), NoFlag(), "pairs that are read"] = 1 << 20
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)


COMMAND = TrainingCommand(
    "block-drafter",
    "Train a network that fills several gaps behind a text at once, for generalised-aggressive-decoding; prints JSON.",
    BlockDrafterSpec,
    "polydec.lab.train.block_drafter:train_block_drafter",
)
