"""A second, cheaper law drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess, TreeGrower
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


def required_draft(draft: Target | None, asked: str) -> Target:
    """The draft model that an option needs.

    Args:
        draft: The draft model. None: there is none.
        asked: Which option needs it, with its value, for the message.

    Returns:
        The draft model.

    Raises:
        RequestError: There is none.
    """
    if draft is None:
        raise RequestError(
            f"{asked}: there is no draft model, so name one (--draft) or leave it out"
        )
    return draft


@dataclass(frozen=True)
class ModelDrafter:
    """Draw a tree from a second, cheaper model.

    Attributes:
        draft: A target of the same vocabulary, with any shaping: what it is decides how much is
            accepted, never what is said.
        tree: Which nodes are drawn of its laws.
        last: How many tokens of the prompt, from its end, the draft reads, at least 1. None: all.

    Exact: law, under any exact verifier.
    Reduces to: `nothing` at depth 0.
    Source: Leviathan et al. (2023); Chen et al. (2023).
    """

    draft: Target
    tree: TreeGrower
    last: int | None = None

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise RequestError(f"last is {self.last}: it must be at least 1")

    def open_guess(self, prompt: Sequence[int], session: Session) -> ModelGuess:
        """Begin a sequence of the draft model.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used: the draft model has a session of its own.

        Returns:
            The guess.
        """
        return ModelGuess(
            self.tree,
            self.draft.open_session(prompt if self.last is None else prompt[-self.last :]),
        )


@dataclass(frozen=True)
class ModelGuess(DraftGuess):
    """The draft model at work on one sequence.

    Attributes:
        tree: Which nodes are drawn of its laws.
        session: The draft's own session, which commits what the decoder commits.
    """

    tree: TreeGrower
    session: Session

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow a tree from the draft model.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Random stream of the text.

        Returns:
            The tree.
        """
        # Without room the prompt is not even fed.
        if budget.depth < 1:
            return Draft.chain_draft(root)
        # The prompt is fed in chunks; from the second round on nothing is left to feed here.
        await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        return await self.tree.grow_tree(self.session, root, position, budget, rng)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Commit what the decoder commits.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # What the draft's staged tree has of these tokens stays in its cache; rejected nodes leave
        # it.
        self.session.commit_tokens(verdict.committed_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> ModelGuess:
        """A guess with a fork of the draft's session.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return ModelGuess(self.tree, self.session.fork(choice))

    def close(self) -> None:
        self.session.close()
