"""Frequency penalty: a constant off a token for every time that it was generated before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import Tensor

from polydec.base.options import Note, Within, check
from polydec.core.types import Reads
from polydec.laws.shapers._rows import Ids, add, ids, index
from polydec.laws.shapers._rule import Rule, Setting

Penalty = Annotated[
    float,
    Within(-2, 2),
    Note("0 changes nothing"),
    "taken off the logit of a token for each time that it stands in the answer so far",
]


@dataclass(frozen=True)
class Frequency:
    """w - penalty * count, count being how often the token stands in the output (the prompt does not count); a negative
    penalty rewards.

    Reduces to: the identity at 0. Raises RequestError where the penalty is not finite. Source: OpenAI API reference.
    """

    penalty: float
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check("frequency_penalty", self.penalty, Penalty)

    def start(self, prompt: Sequence[int]) -> Ids:
        return ids()

    def step(self, state: Ids, token: int) -> Ids:
        return add(state, token)

    def shape(self, state: Ids, logw_V: Tensor) -> Tensor:
        token_n, count_n = np.unique(state, return_counts=True)
        at, out_V = index(token_n, logw_V), logw_V.clone()
        out_V[at] = logw_V[at] - self.penalty * index(count_n, logw_V).to(logw_V.dtype)
        return out_V


def make(setting: Setting, *, frequency_penalty: Penalty = 0.0) -> Frequency | None:
    return Frequency(frequency_penalty) if frequency_penalty else None


RULE = Rule(
    "frequency_penalty", make, {"transformers": 30, "vllm": 60, "llamacpp": 60}, always=True
)
