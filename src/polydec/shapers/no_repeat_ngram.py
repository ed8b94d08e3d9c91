"""No repeated n-gram: no token that would complete an n-gram of the text."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from polydec.core.law import NEG_INF, or_end
from polydec.core.types import Reads
from polydec.shapers._rows import Ids, add, ids, index


@dataclass(frozen=True)
class NoRepeatNgram:
    """Ban every token that followed an earlier occurrence of the last size - 1 tokens of prompt and output, size >= 1
    (1: no token twice). Where that would leave nothing, EOS follows (`eos`; without it the row stays as it was).

    Reduces to: the identity while no n-gram begins again. Raises ValueError outside the range.
    Source: Paulus, Xiong and Socher, "A deep reinforced model for abstractive summarization", 2018.
    """
    size: int
    eos: tuple[int, ...] = ()
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"no_repeat_ngram_size is {self.size}: NoRepeatNgram needs at least 1 (leave it out to allow all)")

    def start(self, prompt: Sequence[int]) -> Ids:
        return ids(prompt)

    def step(self, state: Ids, token: int) -> Ids:
        return add(state, token)

    def shape(self, state: Ids, logw_V: Tensor) -> Tensor:
        if len(state) < self.size:
            return logw_V
        at = np.arange(self.size - 1, len(state))                  # where the last token of an n-gram stands
        for back in range(1, self.size):
            at = at[state[at - back] == state[-back]]
        if not len(at):
            return logw_V
        out_V = logw_V.clone()
        out_V[index(state[at], logw_V)] = NEG_INF
        return or_end(out_V, logw_V, self.eos)
