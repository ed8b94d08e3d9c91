"""No draft: plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from polydec.core.protocols import Scores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Reads, Want
from polydec.methods.speculative.loop.protocols import Guess
from polydec.methods.speculative.loop.types import Budget, Verdict


@dataclass(frozen=True)
class Nothing:
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
class NothingGuess(Guess):
    """Has no state."""

    @property
    def want(self) -> Want:
        return Want(law=Reads.NOTHING)

    async def propose(self, root: int, position: int, budget: Budget, rng: Rng) -> Draft:
        return Draft.chain(root)

    def learn(self, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        pass

    def fork(self, session: Session, choice: int | None = None) -> NothingGuess:
        return self

    def close(self) -> None:
        pass
