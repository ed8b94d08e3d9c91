"""What `polydec train flash` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.options import InRange
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.image_drafter import ImageDrafterSpec, image_drafter_summary


@dataclass(frozen=True)
class FlashSpec(ImageDrafterSpec):
    """What `train_flash` makes; see `ImageDrafterSpec`."""

    latents: Annotated[
        int,
        InRange(0, 4096),
        "rows that the drafter reads of an image (0: one a vector; published: 64 of 576)",
    ] = 8
    block: Annotated[int, InRange(1, 16), "tokens that a pass guesses (published: 5)"] = 5
    scaled: Annotated[
        bool,
        "what asks an image's vectors is divided by the root of the width (false: as published)",
    ] = True


COMMAND = TrainingCommand(
    "flash",
    "Train a drafter for a model that reads images, which reads few rows of each and guesses several tokens a pass (FLASH).",
    FlashSpec,
    "polydec.lab.train.flash:train_flash",
    sentence=image_drafter_summary,
)
