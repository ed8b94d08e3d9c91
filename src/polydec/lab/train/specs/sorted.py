"""What `polydec train sorted` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, NoFlag, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Out, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class SortedSpec:
    """What `train_sorted` makes.

    Attributes:
        target: The draft takes its tokenizer and, at its width, begins with its first layers, norm
            and head.
        layers: Layers of the draft, at least 2; 0: half the target's.
        width: Width of the draft, in heads of the target's size; another width than the target's
            begins at random.
        exits: Ascending depths, of which the last is `layers`; one alone makes an ordinary draft of
            that depth.
    """

    out: Out
    target: Annotated[str, "directory or zoo:NAME that the draft begins with"] = "zoo:tiny"
    data: Data = None
    layers: Annotated[int, "of the draft (0: half the target's)"] = 0
    width: Annotated[
        int, AtLeast(0), "of the draft (0: the target's, begun with its first layers)"
    ] = 0
    exits: Annotated[tuple[int, ...], "depths that serve (default: half, three quarters, all)"] = ()
    distil: Annotated[bool, "learn the target's laws, not the text's tokens"] = True
    steps: Steps = 400
    rate: Annotated[
        float | None, NoFlag(), "learning rate of AdamW (none: 1e-3, or at random 6e-3)"
    ] = None
    muon: Annotated[
        float | None, NoFlag(), "learning rate of Muon (none: 0.01, or at random 0.02)"
    ] = None
    train_mb: Annotated[tuple[float, ...], NoFlag(), "megabytes of prose, code and dialogue"] = (
        10.0,
        8.0,
        6.0,
    )
    held_kb: Annotated[float, NoFlag(), "kilobytes of held-out text of each kind"] = 250.0
    seed: Seed = 0
    save_every: SaveEvery = 50
    bf16: Annotated[bool | None, NoFlag(), "16-bit arithmetic (none: where the machine has it)"] = (
        None
    )
    more: Annotated[Mapping[str, Any] | None, NoFlag(), "fields of LMSpec, for tests"] = None

    def __post_init__(self) -> None:
        keep_ranges(self)
        # One layer has no half to serve.
        if self.layers and not 2 <= self.layers <= 256:
            raise RequestError(f"layers is {self.layers}: it must be 0 or lie in 2 to 256")


COMMAND = TrainingCommand(
    "sorted",
    "Train one draft that serves at half, three quarters and all of its layers (S2D).",
    SortedSpec,
    "polydec.lab.train.sorted:train_sorted",
)
