"""What `polydec train patches` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, CommaList, InRange, ParseAs, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, Layers, Resumed, SaveEvery, Seed, Steps, Width
from polydec.lab.train.specs.pictures import PictureFiles


@dataclass(frozen=True)
class PatchesSpec:
    """What `train_patches` makes: a model whose tokens are patches of a picture, as vectors, and the
    head that draws them.

    Attributes:
        classes: In the order of their labels. None: the labels are the words.
        width: Width of the network, a multiple of 32.
        drawing_steps: A model and its draft have the same number.
    """

    out: Resumed
    images: PictureFiles
    classes: Annotated[
        tuple[str, ...],
        ParseAs(CommaList),
        "words of the classes, in the order of their labels (default: the labels)",
    ] = ()
    side: Annotated[int, InRange(2, 64), "patches of a row and of a column"] = 7
    patch: Annotated[int, InRange(1, 16), "pixels of a patch's side"] = 2
    drawing_steps: Annotated[int, InRange(1, 100), "Gaussian steps from noise to a patch"] = 8
    head_units: Annotated[int, InRange(1, 4096), "units of the head's layers"] = 128
    head_layers: Annotated[int, InRange(0, 16), "layers of the head"] = 2
    steps: Steps = 3000
    rows: Annotated[int, AtLeast(1), "pictures a step"] = 32
    width: Width = 96
    layers: Layers = 3
    seed: Seed = 0
    save_every: SaveEvery = 100
    rate: AdamRate = 2e-3
    masked: Annotated[bool, "a model that draws sets of patches in any order, for masked-mar"] = (
        False
    )
    least_masked: Annotated[
        float, InRange(0, 1), "masked: share of a picture that is masked in training at least"
    ] = 0.7
    drop: Annotated[
        float,
        InRange(0, 1),
        "share of the classes that are left out, so that a prompt may name none",
    ] = 0.1

    def __post_init__(self) -> None:
        keep_ranges(self)
        if self.width % 32:
            raise RequestError(f"width is {self.width}: it must be a multiple of 32")


def patch_training_summary(result: Mapping[str, Any]) -> str:
    """What was measured on held-out pictures, and what the run took."""
    return (
        f"held-out pictures, nats a pixel at most: {result['held_out_nats']:.3f} (values from -1 to 1)\n"
        f"{result['parameters']:,} parameters, {result['head_parameters']:,} of them the head's; {result['steps']:,} steps, "
        f"{result['seconds']:.0f} s; written to {result['out']}, the head to {result['out']}/head"
    )


COMMAND = TrainingCommand(
    "patches",
    "Train a small model that draws grey pictures of patches, which are vectors, one by one or (--masked) in sets, and its "
    "diffusion head (mar).",
    PatchesSpec,
    "polydec.lab.train.patches:train_patches",
    sentence=patch_training_summary,
)
