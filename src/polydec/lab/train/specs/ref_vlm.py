"""What `polydec train ref-vlm` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class RefVlmSpec:
    """What `train_ref_vlm` makes: a vision-language model that answers in triplets, and what decodes its references."""

    out: Resumed
    target: Annotated[
        str, "the model to begin with, one of `train vision`: a name like --model's"
    ] = "zoo:vision"
    steps: Steps = 600
    rows: Annotated[
        int, AtLeast(1), "scenes of a step, of which each is asked about in all ways"
    ] = 8
    inner: Annotated[int, AtLeast(1), "numbers of what a reference asks an image with"] = 64
    distance: Annotated[float, AtLeast(0), "weight of the distance of a box's sides (L1)"] = 2.0
    overlap: Annotated[float, AtLeast(0), "weight of a box's generalised overlap (GIoU)"] = 1.0
    cross_entropy: Annotated[
        float, AtLeast(0), "weight of the cross-entropy of a mask's patches"
    ] = 0.3
    dice: Annotated[float, AtLeast(0), "weight of the Dice loss of a mask"] = 0.7
    rate: AdamRate = 1e-3
    muon: MuonRate = 0.01
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        if not self.distance + self.overlap:
            raise RequestError(
                "distance and overlap are both 0: nothing would teach boxes, so one of them must be above 0"
            )
        if not self.cross_entropy + self.dice:
            raise RequestError(
                "cross_entropy and dice are both 0: nothing would teach masks, so one of them must be above 0"
            )


def ref_vlm_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    right = ", ".join(f"{kind} {share:.1%}" for kind, share in result["held_out_right"].items())
    overlaps = ", ".join(f"{unit} {x:.3f}" for unit, x in result["held_out_overlap"].items())
    return (
        f"held-out scenes, texts right: {right}\nheld-out units, IoU behind the right text: {overlaps}\n"
        f"{result['parameters']:,} parameters, {result['steps']:,} steps, {result['seconds']:.0f} s; written to "
        f"{result['out']}, the decoders to {result['out']}/units"
    )


COMMAND = TrainingCommand(
    "ref-vlm",
    "Train a model of `train vision` further, so that its answers refer to things in triplets, and what decodes boxes and "
    "masks of the states of its references (ref-vlm).",
    RefVlmSpec,
    "polydec.lab.train.ref_vlm:train_ref_vlm",
    sentence=ref_vlm_training_summary,
)
