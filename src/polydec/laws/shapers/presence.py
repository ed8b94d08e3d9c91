"""Presence penalty: a constant off every token that was generated before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import Note, Within, check
from polydec.core.types import Reads
from polydec.laws.shapers._rows import Ids, add, ids, index
from polydec.laws.shapers._rule import Rule, Setting

Penalty = Annotated[
    float,
    Within(-2, 2),
    Note("0 changes nothing"),
    "taken off the logit of every token of the answer so far",
]


@dataclass(frozen=True)
class Presence:
    """w - penalty for every token of the output (the prompt does not count); a negative penalty rewards.

    Reduces to: the identity at 0. Raises RequestError where the penalty is not finite. Source: OpenAI API reference.
    """

    penalty: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check("presence_penalty", self.penalty, Penalty)

    def start(self, prompt: Sequence[int]) -> Ids:
        return ids()

    def step(self, state: Ids, token: int) -> Ids:
        return add(state, token)

    def shape(self, state: Ids, logw_V: Tensor) -> Tensor:
        at, out_V = index(state, logw_V), logw_V.clone()
        out_V[at] = logw_V[at] - self.penalty
        return out_V


def make(setting: Setting, *, presence_penalty: Penalty = 0.0) -> Presence | None:
    return Presence(presence_penalty) if presence_penalty else None


RULE = Rule("presence_penalty", make, {"transformers": 40, "vllm": 70, "llamacpp": 70}, always=True)
