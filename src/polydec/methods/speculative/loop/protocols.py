"""The roles of draft and verify.

A method implements one of these; nothing in the package asks which class it got.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, TypeVar

from polydec.core.protocols import DraftScorer, DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.methods.speculative.loop.types import DraftBudget, Verdict

P = TypeVar("P")


class DraftGuess(Protocol):
    """A drafter at work on one sequence.

    The loop calls `propose_draft` and then `learn_round` in each round. The loop alone commits tokens to the
    target's session.
    """

    @property
    def want(self) -> ScoreRequest:
        """What it reads of each score of the target; `law` is ignored.

        With want.prompt, `learn_round` is called once before the first proposal with the prompt as an
        accepted chain. With want.last, it is called with the prompt's last token before the root
        alone (or with all of them, where another drafter wants these), and a cached prefix is not
        computed again.
        """
        ...

    @property
    def price(self) -> float:
        """Milliseconds that one proposal takes, whatever comes of it.

        It is 0.0 where that is not worth counting; a guess that derives from this class has that
        from here. A drafter that holds others adds their prices. What a draft model takes for each
        token is not part of it: that is `PassCosts.draft_ms`, which is counted by the token.
        """
        return 0.0

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose a draft below the root.

        Args:
            root: Last token of the text. It is not in the target's cache yet, and it is node 0 of
                the draft.
            position: Absolute position of the first drafted token.
            budget: How many levels and nodes the draft may have, and where to stop.
            rng: Random stream of the text. The drafter draws at ``rng.child_stream("draft", position, ...)``
                only.

        Returns:
            A token tree. The root alone where there is nothing to propose.
        """
        ...

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Take note of what the target said. A drafter sees the true text here and nowhere else.

        Args:
            draft: The draft that the target has scored. It may be another one than was proposed,
                where this drafter is part of a combination.
            scores: The target's scores at the nodes of the draft, as far as `want` asked for them.
            verdict: The accepted nodes and the token that follows them; ``verdict.prompt`` says
                that the draft is the prompt.
        """
        ...

    def fork_guess(self, session: Session, choice: int | None = None) -> DraftGuess:
        """Another guess that knows the same and goes its own way from here.

        Args:
            session: Fork of the target's session, made just before, for the copy to read.
            choice: Index of the choice of the request that the copy drafts for (see
                `Session.fork`). None: the same choice as before.

        Returns:
            The copy. It must be closed like any other.
        """
        ...

    def close(self) -> None: ...


class Drafter(Protocol):
    """Who guesses tokens ahead of the target.

    A drafter is a frozen configuration. It opens one guess for each sequence, which holds all that
    changes.
    """

    def open_guess(self, prompt: Sequence[int], session: Session) -> DraftGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's own session, for drafters that read its hidden states or run its
                first layers.

        Returns:
            The drafter's guess for this sequence.
        """
        ...


class TreeGrower(Protocol):
    """Which nodes are drawn, for drafters that have a law at any node."""

    async def grow_tree(
        self, laws: DraftScorer, root: int, position: int, budget: DraftBudget, rng: Rng
    ) -> Draft:
        """Draw a token tree from a draft model's laws.

        Args:
            laws: Scores any draft below the root. Each call feeds the nodes that the last one did
                not have.
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: How many levels and nodes the draft may have, and where to stop.
            rng: Random stream of the text. The tree draws at ``rng.child_stream("draft", position, ...)``,
                unless it shares the target's noise.

        Returns:
            The token tree. Each drawn node carries the law that it was drawn from.
        """
        ...


class Verifier(Protocol):
    """Accepts a path of a draft. A verifier is a pure function of laws."""

    exactness: ClassVar[Exactness]

    def verify_draft(self, draft: Draft, scores: DraftScores, rng: Rng, position: int) -> Verdict:
        """Decide which drafted tokens become text.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            rng: Random stream of the text. Draws for a position are made at
                ``rng.child_stream("token", position, ...)``.
            position: Absolute position of the first drafted token.

        Returns:
            The accepted nodes, top down, and the token that follows the last of them.
        """
        ...


class Policy(Protocol[P]):
    """How much to guess next, from what was accepted so far; never from the clock.

    A policy that asks how many sequences share a round has a method `joined(state, sequences) ->
    state` as well, which is called before each round (see
    methods/speculative/policies/batch_width.py).
    """

    def start_state(self) -> P:
        """The state before the first round of a text."""
        ...

    def draft_budget(self, state: P) -> DraftBudget:
        """The bounds of the next draft in this state."""
        ...

    def observe_round(self, state: P, draft: Draft, verdict: Verdict) -> P:
        """The state after a round. States are values: none is written to.

        Args:
            state: State before the round.
            draft: The draft that the target has scored.
            verdict: The accepted nodes and the token that follows them.

        Returns:
            The state for the next round.
        """
        ...
