"""Banned tokens: any but these."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polydec.core.law import NEG_INF, or_end
from polydec.core.types import Reads
from polydec.shapers._rows import ids, index


@dataclass(frozen=True)
class Banned:
    """Ban `tokens`. Where that would leave nothing, EOS follows, be it banned or not (`eos`; without it the row stays as
    it was).

    Reduces to: the identity without tokens. Raises ValueError for a negative id.
    Source: Hugging Face transformers, GenerationConfig.suppress_tokens.
    """
    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.tokens, default=0) < 0:
            raise ValueError(f"bad_token_ids has token {min(self.tokens)}: ids are at least 0")

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        out_V = logw_V.clone()
        out_V[index(ids(self.tokens), logw_V)] = NEG_INF
        return or_end(out_V, logw_V, self.eos)
