"""What `polydec train msd` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.image_drafter import ImageDrafterSpec, image_drafter_summary


@dataclass(frozen=True)
class MsdSpec(ImageDrafterSpec):
    """What `train_msd` makes; see `ImageDrafterSpec`."""

    decoupled: Annotated[
        bool, "places of an image enter as its vectors alone (false: as words do)"
    ] = True


COMMAND = TrainingCommand(
    "msd",
    "Train a drafter for a model that reads images: EAGLE's layer, which reads images as the target does (MSD).",
    MsdSpec,
    "polydec.lab.train.msd:train_msd",
    sentence=image_drafter_summary,
)
