"""The target guesses a block of tokens and corrects it in every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict


@dataclass(frozen=True)
class JacobiDrafter:
    """Guess a block of tokens, and correct it with every pass (Jacobi iteration).

    There is a guess of the next `block` tokens. Each pass feeds it as a chain; the likeliest token
    after each of its tokens is the next guess of the place after it, which converges to the greedy
    text. The block moves on with the text, and the places that come in have copies of the prompt's
    tokens. Guesses follow the shaped law, penalties included.

    Attributes:
        block: Tokens of the guess, 1 to 64, within the budget. Default 4.

    Exact: law, under any exact verifier: candidates are certain. A greedy pass settles at least one
    place of the block, so `block` tokens never take more than `block` passes.
    Reduces to: `nothing` at depth 0.
    Source: Santilli et al., "Accelerating transformer inference for translation via parallel
    decoding" (2023).
    """

    block: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.block <= 64:
            raise RequestError(f"block is {self.block}: it must lie in 1 to 64")

    def open_guess(self, prompt: Sequence[int], session: Session) -> JacobiGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which begins with tokens of the prompt.
        """
        return JacobiGuess(tuple(prompt), list(spread_prompt_tokens(prompt, self.block)))


@dataclass(frozen=True)
class JacobiGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        prompt: Token ids of the prompt.
        guess: Guesses of the places after the root.
    """

    prompt: tuple[int, ...]
    guess: list[int]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose the guess.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain.
        """
        return Draft.chain_draft(root, self.guess[: min(budget.depth, budget.nodes)])

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Correct the guess with the target's likeliest tokens, and move it on with the text.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        done = len(verdict.path)
        # Nodes of the guess in the draft: fewer than all where an end of the text or another
        # drafter's choice has cut it.
        nodes = draft.nodes_of((draft.token[0], *self.guess))
        if verdict.path == tuple(nodes[1 : done + 1]):
            # The text follows the guess so far: each guess is replaced by the target's likeliest
            # token after its predecessor; what was not fed stays.
            new = [
                *[scores.likeliest_token(i) for i in nodes[done + 1 :]],
                *self.guess[max(len(nodes), done + 1) :],
            ]
        else:
            # The text left the guess: what was guessed behind that place is only moved up.
            new = self.guess[done + 1 :]
        missing = len(self.guess) - len(new)
        self.guess[:] = [*new, *spread_prompt_tokens(self.prompt, missing)]

    def fork_guess(self, session: Session, choice: int | None = None) -> JacobiGuess:
        """A guess with its own copy of the block.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return JacobiGuess(self.prompt, list(self.guess))

    def close(self) -> None:
        pass


def spread_prompt_tokens(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """Tokens of the prompt at even distances: a first guess of anything, without a draw.

    Args:
        prompt: Token ids, at least one.
        count: How many, 0 or more.

    Returns:
        The tokens.
    """
    return tuple(prompt[len(prompt) * (2 * i + 1) // (2 * count)] for i in range(count))
