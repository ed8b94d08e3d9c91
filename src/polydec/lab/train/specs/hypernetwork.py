"""What `polydec train hypernetwork` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, GreaterThan, InRange, NoFlag, OneOf, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import Data, Resumed, SaveEvery, Seed, Steps, require_full_step


@dataclass(frozen=True)
class HypernetworkSpec:
    """What `train_hypernetwork` makes.

    Attributes:
        texts: Texts to learn from, of `length` tokens each.
        known: Weight of the second loss: tokens that the model has, made of smaller ones of its own.
        tries: Held-out texts that are measured.
    """

    out: Resumed
    target: Annotated[str, "the model: a directory that `polydec train lm` wrote, or zoo:NAME"] = (
        "zoo:tiny"
    )
    data: Data = None
    texts: Annotated[int, AtLeast(1), "texts to learn from"] = 1000
    length: Annotated[
        int, InRange(8, 4096), "tokens of each; longer texts are cut, shorter ones left out"
    ] = 64
    rows: Annotated[int, AtLeast(1), "texts a step, whose tokens are merged together"] = 8
    steps: Steps = 400
    boundary: Annotated[str, OneOf("word", "pretoken", "sentence"), "what one token may hold"] = (
        "word"
    )
    longest: Annotated[int, InRange(2, 256), "tokens that become one, at most"] = 8
    width: Annotated[int, InRange(8, 4096), "width of the network, a multiple of 8"] = 64
    layers: Annotated[int, InRange(0, 64), "layers of the network"] = 2
    answers: Annotated[
        int,
        InRange(0, 1 << 20),
        "units that answers may be written in, those that stand most often in the learned texts (0: none)",
    ] = 0
    known: Annotated[
        float, InRange(0, 100), "weight of making the model's own tokens of smaller ones"
    ] = 0.5
    rate: Annotated[float, GreaterThan(0), "highest learning rate"] = 1e-3
    tries: Annotated[int, AtLeast(1), NoFlag(), "held-out texts that are measured"] = 64
    seed: Seed = 0
    save_every: SaveEvery = 100

    def __post_init__(self) -> None:
        keep_ranges(self)
        # Heads of the network have 8 numbers.
        if self.width % 8:
            raise RequestError(f"width is {self.width}: it must be a multiple of 8")
        require_full_step(self.texts, self.rows)


COMMAND = TrainingCommand(
    "hypernetwork",
    "Train what makes vectors of merged tokens for a model that stays as it is (dynamic tokenization); prints JSON.",
    HypernetworkSpec,
    "polydec.lab.train.hypernetwork:train_hypernetwork",
)
