"""No draft: plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class NothingDrafter:
    """Proposes nothing, so that every pass gives one token.

    Exact: law, under any exact verifier.
    Reduces to: itself.
    """

    unexercised: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("drafted", "accepted", "rejected", "proposing", "distinct", "learned"),
        "it proposes nothing",
    )

    def open(self, prompt: Sequence[int], session: Session) -> NothingGuess:
        return NothingGuess()


@dataclass(frozen=True)
class NothingGuess(DraftGuess):
    """Has no state."""

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return Draft.chain(root)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        pass

    def fork(self, session: Session, choice: int | None = None) -> NothingGuess:
        return self

    def close(self) -> None:
        pass
