"""What followed the last few tokens in other texts: the longest n-gram that a table knows."""

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
    """Propose what an n-gram table says of the longest context that it knows, as a tree.

    The chance of a node is the table's; nodes are taken in order of the product along their path
    until it falls below `floor` or the budget is full.

    Attributes:
        table: Counted in other texts of the same tokenizer.
        floor: Least chance of a path, 0 to 1. Default 0.05.
        width: Most children of a node, 1 to 16. Default 2.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` with a table that knows no context, and with floor 1.
    Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (2023),
    bigram drafts; Ou et al., "Lossless acceleration of large language model via adaptive n-gram
    parallel decoding" (2024).
    """

    table: NGrams
    floor: float = 0.05
    width: int = 2

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 16")

    def open_guess(self, prompt: Sequence[int], session: Session) -> BackoffGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which remembers as many of the last tokens as the table's contexts have.
        """
        return BackoffGuess(self, list(prompt[-self.table.order :]))


@dataclass(frozen=True)
class BackoffGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        tail: The last tokens, the pending root included; nothing else is remembered.
    """

    config: BackoffDrafter
    tail: list[int]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow the tree of the table's likeliest continuations.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        config = self.config
        order = self.config.table.order

        def children_after(tail: list[int], product: float) -> list[tuple[float, int, list[int]]]:
            """Children of a node by the table.

            Args:
                tail: The last tokens at the node.
                product: Not used.

            Returns:
                Chance, token and its own last tokens, of each child.
            """
            return [
                (p, x, [*tail, x][-order:])
                for p, x in config.table.followers_of(tail)[: config.width]
            ]

        # The larger of the drafter's own floor and the one that the budget asks for.
        return likeliest_first(
            root, self.tail, children_after, max(config.floor, budget.floor), budget
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        # Only as many tokens as the longest context of the table are remembered.
        self.tail.extend(verdict.written_tokens(draft))
        del self.tail[: -self.config.table.order]

    def fork_guess(self, session: Session, choice: int | None = None) -> BackoffGuess:
        """A guess with its own copy of the last tokens.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return BackoffGuess(self.config, list(self.tail))

    def close(self) -> None:
        pass
