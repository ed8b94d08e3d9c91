"""The law of an insertion model: what is missing in a text, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from polydec.core.law import normalise_log_weights
from polydec.core.types import TokenVocabulary


@dataclass(frozen=True, eq=False)
class InsertionScores:
    """What one pass says. logw_SV: log-weights of every token behind every slot, float64, comparable between slots, -inf at
    tokens that are never put in; whole: the probability that nothing is missing, 0 to 1."""

    logw_SV: Tensor
    whole: float

    @cached_property
    def logp_S(self) -> Tensor:
        """Of each slot, how likely the next token comes there."""
        return normalise_log_weights(torch.logsumexp(self.logw_SV, -1))


class InsertionSession(Protocol):
    """A text under one model. It only grows."""

    async def score(self, text: Sequence[int], slots: Sequence[int]) -> InsertionScores:
        """What the model would put behind the tokens at these positions of the text (ascending, at least one). Every pass
        feeds the whole text: a token that is put in changes what all others mean."""
        ...

    def close(self) -> None: ...


class Inserter(Protocol):
    """A law over the next insertion into a text, and over whether there is one."""

    family: ClassVar[str]
    """"insertion": what tells it from models that continue texts or fill canvases."""

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        ...

    @property
    def vocab(self) -> TokenVocabulary: ...
    def open(self, length: int) -> InsertionSession:
        """For a text of `length` tokens at most. Raises PolydecError where that is longer than the model's context."""
        ...
