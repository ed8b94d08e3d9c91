"""No citations: no token that would complete a run of tokens that stands in a counted text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail
from polydec.models.learned.kinds.ngram_counts import NgramCounts


@dataclass(frozen=True)
class CitationRule:
    """Ban every token that would complete `length` tokens in a row that stand in the texts that
    `table` was counted in. Where that would leave nothing, the likeliest token stays.

    length: at least 2, and at most one more than the table's longest context. Prompt and answer are
    one text: a run may begin in the prompt.

    Reduces to: the identity while the last length - 1 tokens stand nowhere in the counted texts.
    Raises RequestError outside the range.
    Source: Carlsson et al., "The hyperfitting phenomenon: sharpening and stabilizing LLMs for
    open-ended text generation" (2024), its decoder that blocks citations (the length is our choice).
    """

    table: NgramCounts
    length: int
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.table.order + 1:
            raise RequestError(
                f"length is {self.length}: with this table of counts it must lie in 2 to {self.table.order + 1}, "
                "one more than its order"
            )

    def start_state(self, prompt: Sequence[int]) -> tuple[int, ...]:
        return tuple(prompt[1 - self.length :])

    def next_state(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        """Append the token to the end of the text that the rule remembers.

        Args:
            state: The last length - 1 token ids of prompt and answer so far, or as many as there
                are.
            token: Token id that follows.

        Returns:
            The last length - 1 token ids with it.
        """
        return (*state, token)[1 - self.length :]

    def shape_law(self, state: tuple[int, ...], logw_V: Tensor) -> Tensor:
        """Ban the tokens that would complete a citation.

        Args:
            state: The last length - 1 token ids of prompt and answer so far, or as many as there
                are.
            logw_V: Log-weights, shape ``[V]``; not written to.

        Returns:
            Log-weights, shape ``[V]``; the likeliest token alone where all of them are banned.
        """
        # A text that is still too short completes no run.
        if len(state) < self.length - 1:
            return logw_V
        banned = self.table.seen_after(state)
        if not len(banned):
            return logw_V
        out_V = logw_V.clone()
        out_V[torch.from_numpy(banned).long().to(logw_V.device)] = NEG_INF
        # Something must follow: the likeliest token is a citation then.
        if float(out_V.max()) == NEG_INF:
            best = int(logw_V.argmax())
            out_V[best] = logw_V[best]
        return out_V
