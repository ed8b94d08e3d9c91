"""What `polydec train arcana` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class ArcanaSpec:
    """What `train_arcana` makes of a model of `polydec train vision`.

    Attributes:
        rank: Of both adapters together; the published training has 256.
        image_share: Share of the rank that the adapter for images has; the published training has
            64 of 256.
        dropout: Share of what adapters read that a step of training leaves out; the published
            training has 0.05.
    """

    out: Resumed
    target: Annotated[str, "a model of `polydec train vision`, which is left as it is"] = (
        "zoo:vision"
    )
    rank: Annotated[int, InRange(1, 4096), "of both adapters together (published: 256)"] = 16
    image_share: Annotated[
        float, InRange(0, 1), "share of the rank for rows of images (published: 0.25)"
    ] = 0.25
    apart: Annotated[
        bool, "rows of images have an adapter of their own (false: all rows have one, of the rank)"
    ] = True
    queries: Annotated[
        int,
        InRange(0, 1024),
        "learned queries that climb the tower and stand behind the patches (0: none; published: 64)",
    ] = 4
    dropout: Annotated[
        float, InRange(0, 0.9), "share of what adapters read that a step leaves out"
    ] = 0.05
    steps: Steps = 600
    rows: Annotated[
        int, AtLeast(1), "scenes of a step, of which each is asked about in all ways"
    ] = 24
    rate: AdamRate = 2e-3
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        text, image = self.adapter_ranks
        # An adapter of rank 0 would be none.
        if self.apart and not (text and image):
            raise RequestError(
                f"image_share is {self.image_share} of rank {self.rank}: words would have {text} and images {image}, and "
                "each needs at least 1"
            )

    @property
    def adapter_ranks(self) -> tuple[int, int]:
        """Ranks of the adapters for words and for images; the second is 0 where they share one."""
        image = round(self.rank * self.image_share) if self.apart else 0
        return self.rank - image, image


def arcana_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in result["held_out_right"].items())
    return (
        f"held-out scenes: {result['held_out_nats']:.4f} nats a token, answers right: {kinds}\n"
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s; written to "
        f"{result['out']}"
    )


COMMAND = TrainingCommand(
    "arcana",
    "Train two adapters of a vision-language model, one for words and one for images, and queries that climb its tower "
    "(Arcana).",
    ArcanaSpec,
    "polydec.lab.train.arcana:train_arcana",
    sentence=arcana_training_summary,
)
