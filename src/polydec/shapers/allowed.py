"""Allowed tokens: these and no others."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.core.law import NEG_INF, or_end
from polydec.core.types import Reads
from polydec.shapers._rows import ids, index


@dataclass(frozen=True)
class Allowed:
    """Ban every token but `tokens` (at least one; EOS is banned unless it is one of them). Where an earlier shaper has
    left none of them, EOS follows (`eos`; without it the row stays as it was).

    Reduces to: the identity where all tokens are allowed. Raises ValueError for no token or a negative id.
    Source: vLLM, SamplingParams.allowed_token_ids.
    """
    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("allowed_token_ids is empty: at least one token must be allowed (leave it out to allow all)")
        if min(self.tokens) < 0:
            raise ValueError(f"allowed_token_ids has token {min(self.tokens)}: ids are at least 0")

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        at, out_V = index(ids(self.tokens), logw_V), torch.full_like(logw_V, NEG_INF)
        out_V[at] = logw_V[at]
        return or_end(out_V, logw_V, self.eos)
