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

    def open_guess(self, prompt: Sequence[int], session: Session) -> NothingGuess:
        """Begin a sequence.

        Args:
            prompt: Not used.
            session: Not used.

        Returns:
            The guess.
        """
        return NothingGuess()


@dataclass(frozen=True)
class NothingGuess(DraftGuess):
    """Proposes nothing, and has no state."""

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose nothing.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Not used.
            budget: Not used.
            rng: Not used.

        Returns:
            The root alone.
        """
        return Draft.chain_draft(root)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Learn nothing.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """

    def fork_guess(self, session: Session, choice: int | None = None) -> NothingGuess:
        """The same guess, as it has no state.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The guess itself.
        """
        # Frozen and without state, so one object serves all choices.
        return self

    def close(self) -> None:
        pass
