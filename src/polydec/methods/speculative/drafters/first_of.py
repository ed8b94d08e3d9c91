"""Several drafters in turn: the first that has something to propose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.drafters._drafter_group import (
    combined_price_ms,
    combined_want,
    teach_all_guesses,
)
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class FirstOfDrafter:
    """Ask several drafters in turn: the first proposal that is not empty is the draft.

    All of them learn from every pass.

    Attributes:
        drafters: At least one; put the one that is silent most often and right most often first.

    Exact: law, under any exact verifier: which drafter speaks depends on the text and on what they
    were shown.
    Reduces to: its only drafter; the second one where the first is always silent.
    Source: composition; CopySpec (Dumitru et al., 2025) falls back from copying to a draft model in
    this way.
    """

    drafters: tuple[Drafter, ...]

    def __post_init__(self) -> None:
        if not self.drafters:
            raise RequestError("drafters is empty: at least one is needed")

    def open_guess(self, prompt: Sequence[int], session: Session) -> FirstOfGuess:
        """Begin a sequence of each drafter.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session on this prompt.

        Returns:
            The guess.
        """
        return FirstOfGuess(tuple(d.open_guess(prompt, session) for d in self.drafters))


@dataclass(frozen=True)
class FirstOfGuess:
    """The guesses of all drafters, in their order."""

    guesses: tuple[DraftGuess, ...]

    @property
    def price(self) -> float:
        return combined_price_ms(self.guesses)

    @property
    def want(self) -> ScoreRequest:
        return combined_want(self.guesses)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Take the first draft with a token.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            That draft. The root alone where all are silent.
        """
        for guess in self.guesses:
            draft = await guess.propose_draft(root, position, budget, rng)
            # Drafters after this one are not asked, so they draw nothing and cost nothing.
            if len(draft) > 1:
                return draft
        return Draft.chain_draft(root)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Let all drafters learn.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        teach_all_guesses(self.guesses, draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> FirstOfGuess:
        """Fork all guesses.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return FirstOfGuess(tuple(g.fork_guess(session, choice) for g in self.guesses))

    def close(self) -> None:
        for guess in self.guesses:
            guess.close()
