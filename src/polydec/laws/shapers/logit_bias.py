"""Logit bias: a constant added to some tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from polydec.base.options import Note, Within, check
from polydec.core.types import Reads
from polydec.laws.shapers._rows import Ids, ids, index
from polydec.laws.shapers._rule import Rule, Setting

Bias = Annotated[
    Mapping[int, float],
    Within(-100, 100),
    Note("bad_token_ids bans a token"),
    "added to the logits of tokens",
]


@dataclass(frozen=True)
class LogitBias:
    """w + b for the given tokens: {id: b} or pairs (id, b), b in -100 to 100.

    Reduces to: the identity where all b are 0. Raises RequestError for a bias out of range, or a negative id.
    Source: OpenAI API reference.
    """

    bias: tuple[tuple[int, float], ...]
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __init__(self, bias: Mapping[int, float] | Sequence[tuple[int, float]]) -> None:
        pairs: dict[int, float] = check("logit_bias", dict(bias), Bias)
        object.__setattr__(self, "bias", tuple(sorted(pairs.items())))

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        out_V = logw_V.clone()
        out_V[index(self._ids, logw_V)] += self._added.to(logw_V)
        return out_V

    @cached_property
    def _ids(self) -> Ids:
        return ids([x for x, _ in self.bias])

    @cached_property
    def _added(self) -> Tensor:
        return torch.tensor([b for _, b in self.bias], dtype=torch.float64)


def make(setting: Setting, *, logit_bias: Bias | None = None) -> LogitBias | None:
    return LogitBias(logit_bias) if logit_bias else None


RULE = Rule(
    "logit_bias",
    make,
    {"transformers": 10, "vllm": 40, "llamacpp": 40},
    always=True,
    token_ids=("logit_bias",),
)
