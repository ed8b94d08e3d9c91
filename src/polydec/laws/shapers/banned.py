"""Banned tokens: any but these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from polydec.base.options import AtLeast, check
from polydec.core.law import NEG_INF
from polydec.core.types import Reads
from polydec.laws.shapers._rows import ids, index, or_end
from polydec.laws.shapers._rule import Rule, Setting

Tokens = Annotated[tuple[int, ...], AtLeast(0), "never any of these tokens"]


@dataclass(frozen=True)
class Banned:
    """Ban `tokens`. Where that would leave nothing, those of `eos` follow that are not banned; where none is left, the row
    stays as it was: nothing can be written then, and the text's guard says so.

    Reduces to: the identity without tokens. Raises RequestError for a negative id.
    Source: Hugging Face transformers, GenerationConfig.suppress_tokens.
    """

    tokens: tuple[int, ...]
    eos: tuple[int, ...] = ()
    reads: ClassVar[Reads] = Reads.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check("bad_token_ids", self.tokens, Tokens)

    def start(self, prompt: Sequence[int]) -> None:
        return None

    def step(self, state: None, token: int) -> None:
        return None

    def shape(self, state: None, logw_V: Tensor) -> Tensor:
        out_V = logw_V.clone()
        out_V[index(ids(self.tokens), logw_V)] = NEG_INF
        return or_end(out_V, logw_V, [x for x in self.eos if x not in self.tokens])

    def forbids(self, state: None, token: int) -> bool:
        return token in self.tokens


def make(setting: Setting, *, bad_token_ids: Tokens = ()) -> Banned | None:
    return Banned(bad_token_ids, setting.eos) if bad_token_ids else None


RULE = Rule(
    "bad_token_ids",
    make,
    {"transformers": 70, "vllm": 20, "llamacpp": 10},
    always=True,
    token_ids=("bad_token_ids",),
)
