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
    """What one pass of an insertion model says.

    Attributes:
        logw_SV: Log-weights of every token behind every slot, shape ``[S, V]``, float64, comparable
            between slots, -inf at tokens that are never inserted.
        whole: Probability that nothing is missing, 0 to 1.
    """

    logw_SV: Tensor
    whole: float

    @cached_property
    def logp_S(self) -> Tensor:
        """Of each slot, how likely the next token comes there."""
        # The slots' totals over the vocabulary are comparable, so they normalise to a law over
        # slots.
        return normalise_log_weights(torch.logsumexp(self.logw_SV, -1))


class InsertionSession(Protocol):
    """A text under one model. It only grows."""

    async def score_slots(self, text: Sequence[int], slots: Sequence[int]) -> InsertionScores:
        """Score what is missing in a text.

        Every pass feeds all of the text: an inserted token changes what all others mean.

        Args:
            text: Token ids of the text as it stands.
            slots: Positions behind whose tokens something may be inserted, ascending, at least one.

        Returns:
            Log-weights for each slot and token, and the probability that nothing is missing.
        """
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
    def open_slate(self, length: int) -> InsertionSession:
        """For a text of `length` tokens at most. Raises PolydecError where that is longer than the
        model's context.
        """
        ...
