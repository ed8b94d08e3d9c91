"""A draft model whose neighbouring attentions read the same input while it drafts.

It reads anew what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import PolydecError, RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class GroupedDrafter:
    """Draft with a model whose consecutive attentions read the same input.

    Of all its layers but the first and the last, `together` consecutive attentions read what enters
    the first of them, so that as many devices could compute them at once.

    Attributes:
        draft: The draft model.
        tree: Which nodes are drawn of its laws.
        together: Attentions of a group, 1 to 64. Default 4.
        calibrated: Whether what it drafted in groups is dropped, and one exact pass over the
            accepted tokens and the new root writes its keys and values; the last row of that pass
            is the exact law of the first drafted token. Else (for measurement) keys and values of
            accepted tokens stay as groups left them. Default: it is.

    Exact: law, under any exact verifier: every node carries the row that it was drawn from.
    Reduces to: `ModelDrafter` at together 1.
    Source: EasySpec (Wu et al., 2025).
    """

    draft: Target
    tree: TreeGrower
    together: int = 4
    calibrated: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.together <= 64:
            raise RequestError(f"together is {self.together}: it must lie in 1 to 64")

    def open_guess(self, prompt: Sequence[int], session: Session) -> GroupedGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the draft model has a session of its own.

        Returns:
            The guess.

        Raises:
            RequestError: The draft's layers cannot read together.
        """
        guess = GroupedGuess(self, self.draft.open_session(prompt))
        try:
            # Made once for the check alone, so that a draft without separable layers is refused
            # now.
            _ = guess.fuzzy
        except PolydecError:
            guess.close()
            raise
        return guess


@dataclass(frozen=True)
class GroupedGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        session: The draft's own exact session, which commits what the decoder commits.
    """

    config: GroupedDrafter
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    @property
    def fuzzy(self) -> Session:
        """The same session with layers in groups."""
        return self.session.open_part(
            range(self.config.draft.layers), together=self.config.together
        )

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the grouped draft.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree.
        """
        if budget.depth < 1:
            return Draft.chain_draft(root)
        # The prompt is fed in chunks; from the second round on nothing is left to feed here.
        await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        return await self.config.tree.grow_tree(self.laws, root, position, budget, rng)

    @property
    def laws(self) -> GroupedLaws:
        return GroupedLaws(self.session, self.fuzzy, self.config.calibrated)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Commit what the decoder commits.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # Committed to the exact session, entries that groups made are dropped and fed anew;
        # committed to the grouped one, they stay.
        (self.session if self.config.calibrated else self.fuzzy).commit_tokens(
            verdict.committed_tokens(draft)
        )

    def fork_guess(self, session: Session, choice: int | None = None) -> GroupedGuess:
        """A guess with a fork of the draft's session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return GroupedGuess(self.config, self.session.fork(choice))

    def close(self) -> None:
        self.session.close()


@dataclass(frozen=True)
class GroupedLaws:
    """The draft's laws while a tree grows: exact at the root where calibrated, of groups below it.

    Attributes:
        exact: The draft's session.
        fuzzy: The same with layers in groups.
        calibrated: Whether the root's law is the exact one.
    """

    exact: Session
    fuzzy: Session
    calibrated: bool

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft with the session that is due.

        Args:
            draft: Token tree whose nodes get a row, the root first.
            want: What the caller reads of the result.

        Returns:
            The draft's laws.
        """
        return await (
            self.exact if self.calibrated and len(draft) == 1 else self.fuzzy
        ).score_draft(draft, want)
