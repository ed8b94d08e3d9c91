"""What followed the last few tokens in other texts: n-grams of a table, the longest that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._walk import likeliest_first
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import NGrams


@dataclass(frozen=True)
class BackoffDrafter:
    """Propose what a table says of the longest context that it knows, as a tree, likeliest paths first.

    The chance of a node is the table's; nodes are taken in order of the product along their path until it falls below
    `floor` or the budget is full.

    table: counted in other texts of the same tokenizer; floor: 0 to 1; width: 1 to 16 children a node.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` with a table that knows no context, and with floor 1.
    Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (2023), bigram drafts; Ou et al.,
    "Lossless acceleration of large language model via adaptive n-gram parallel decoding" (2024).
    """

    table: NGrams
    floor: float = 0.05
    width: int = 2

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 16")

    def open(self, prompt: Sequence[int], session: Session) -> BackoffGuess:
        return BackoffGuess(self, list(prompt[-self.table.order :]))


@dataclass(frozen=True)
class BackoffGuess(DraftGuess):
    """tail: the last tokens, the pending root included; nothing else is remembered."""

    config: BackoffDrafter
    tail: list[int]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        config = self.config
        order = self.config.table.order

        def after(tail: list[int], product: float) -> list[tuple[float, int, list[int]]]:
            return [
                (p, x, [*tail, x][-order:]) for p, x in config.table.after(tail)[: config.width]
            ]

        return likeliest_first(root, self.tail, after, max(config.floor, budget.floor), budget)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.tail.extend(verdict.tokens(draft))
        del self.tail[: -self.config.table.order]

    def fork(self, session: Session, choice: int | None = None) -> BackoffGuess:
        return BackoffGuess(self.config, list(self.tail))

    def close(self) -> None:
        pass
