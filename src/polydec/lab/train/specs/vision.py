"""What `polydec train vision` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, InRange, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class VisionSpec:
    """What `train_vision` makes: a vision-language model of the LLaVA layout.

    Attributes:
        width: Of the language model, a multiple of 32.
        tower_width: Of the vision tower, a multiple of 32.
        tower_loss: Weight of what a linear map must read of the tower for each place of a picture
            (thing and colour), as towers of published models know pictures before they meet a
            language model; 0: answers alone teach.
        start: A model that this command made, of the same sizes.
        drop: The questions of such a scene begin the text: no vector stands before them, as nothing
            stands before those of a request without an image.
        told: Such a scene is asked about behind a caption of it (from the bottom up, from the top
            down, or regular), and all others are asked for each of these captions as well.
    """

    out: Resumed
    steps: Steps = 1200
    rows: Annotated[
        int, AtLeast(1), "scenes of a step, of which each is asked about in all ways"
    ] = 24
    width: Annotated[int, InRange(32, 4096), "of the language model, a multiple of 32"] = 128
    layers: Annotated[int, InRange(1, 64), "of the language model"] = 4
    tower_width: Annotated[int, InRange(32, 4096), "of the vision tower, a multiple of 32"] = 128
    tower_layers: Annotated[int, InRange(1, 64), "of the vision tower"] = 3
    tower_loss: Annotated[
        float,
        AtLeast(0),
        "weight of what the tower must tell of each place (0: answers alone teach)",
    ] = 1.0
    start: Annotated[
        str | None, "a model of this command to begin with, of the same sizes (default: random)"
    ] = None
    drop: Annotated[
        float,
        InRange(0, 1),
        "share of the scenes whose image is left out, so that guidance knows the law without one (0: none)",
    ] = 0.0
    told: Annotated[
        float,
        InRange(0, 1),
        "share of the scenes whose questions stand behind a caption of them, and the others are captioned in three ways "
        "(0: none, and in one way)",
    ] = 0.0
    rate: AdamRate = 1e-3
    muon: MuonRate = 0.02
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # Heads of 32 are what this network has.
        for name, value in (("width", self.width), ("tower_width", self.tower_width)):
            if value % 32:
                raise RequestError(f"{name} is {value}: it must be a multiple of 32")


def vision_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in result["held_out_right"].items())
    return (
        f"held-out scenes, answers right: {kinds}\n{result['parameters']:,} parameters, {result['steps']:,} steps, "
        f"{result['seconds']:.0f} s; written to {result['out']}"
    )


COMMAND = TrainingCommand(
    "vision",
    "Train a small vision-language model (LLaVA's layout) on scenes of shapes and digits that are drawn here: captions "
    "and questions.",
    VisionSpec,
    "polydec.lab.train.vision:train_vision",
    sentence=vision_training_summary,
)
