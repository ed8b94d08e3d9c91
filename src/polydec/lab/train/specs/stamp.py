"""What `polydec train stamp` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from polydec.base.errors import RequestError
from polydec.base.options import AtLeast, keep_ranges
from polydec.lab.train.specs.command import TrainingCommand
from polydec.lab.train.specs.fields import AdamRate, MuonRate, Resumed, SaveEvery, Seed, Steps


@dataclass(frozen=True)
class StampSpec:
    """What `train_stamp` makes: a vision-language model that asks for masks, and the head that reads them.

    Attributes:
        causal: Whether the tokens of a mask see none behind them, to compare.
        written: Whether a mask is written in words, one for each patch, to compare; there is no head then.
    """

    out: Resumed
    target: Annotated[
        str, "the model to begin with, one of `train vision`: a name like --model's"
    ] = "zoo:vision"
    steps: Steps = 600
    rows: Annotated[
        int, AtLeast(1), "scenes of a step, of which each is asked about in all ways"
    ] = 8
    causal: Annotated[bool, "tokens of a mask see none behind them (to compare)"] = False
    written: Annotated[bool, "masks are written, a word a patch (to compare)"] = False
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
        if self.causal and self.written:
            raise RequestError(
                "causal and written are both set: masks that are written have no tokens that see one another, so give one"
            )
        if not self.written and not self.cross_entropy + self.dice:
            raise RequestError(
                "cross_entropy and dice are both 0: nothing would teach masks, so one of them must be above 0"
            )


def stamp_training_summary(result: Mapping[str, Any]) -> str:
    """What is printed of a run."""
    right = ", ".join(f"{kind} {share:.1%}" for kind, share in result["held_out_right"].items())
    overlaps = ", ".join(f"{kind} {x:.3f}" for kind, x in result["held_out_overlap"].items())
    masks = f"held-out masks, IoU behind the right text: {overlaps}\n" if overlaps else ""
    where = f"{result['out']}, the head to {result['out']}/head" if overlaps else result["out"]
    return (
        f"held-out scenes, texts right: {right}\n{masks}{result['parameters']:,} parameters, {result['steps']:,} steps, "
        f"{result['seconds']:.0f} s; written to {where}"
    )


COMMAND = TrainingCommand(
    "stamp",
    "Train a model of `train vision` further, so that its answers ask for masks, and the head that reads each in one pass "
    "(stamp).",
    StampSpec,
    "polydec.lab.train.stamp:train_stamp",
    sentence=stamp_training_summary,
)
