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
    """Keep a guess of the next `block` tokens. Each pass feeds it as a chain; the likeliest token after each of its tokens
    is the next guess of the place behind it (Jacobi iteration towards the greedy text).

    The block moves on with the text, and the places that come in hold copies of the prompt's tokens. Guesses follow the
    shaped law, penalties included. block: 1 to 64 tokens, within the budget.

    Exact: law, under any exact verifier: candidates are certain. A greedy pass settles at least one place of the block,
    so `block` tokens never take more than `block` passes.
    Reduces to: `nothing` at depth 0.
    Source: Santilli et al., "Accelerating transformer inference for translation via parallel decoding" (2023).
    """

    block: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.block <= 64:
            raise RequestError(f"block is {self.block}: it must lie in 1 to 64")

    def open(self, prompt: Sequence[int], session: Session) -> JacobiGuess:
        return JacobiGuess(tuple(prompt), list(spread_prompt_tokens(prompt, self.block)))


@dataclass(frozen=True)
class JacobiGuess(DraftGuess):
    """guess: of the places behind the root."""

    prompt: tuple[int, ...]
    guess: list[int]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return Draft.chain(root, self.guess[: min(budget.depth, budget.nodes)])

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        done = len(verdict.path)
        # Less than all where an end or other drafters cut it.
        nodes = draft.nodes_of((draft.token[0], *self.guess))
        if verdict.path == tuple(nodes[1 : done + 1]):
            new = [
                *[scores.argmax(i) for i in nodes[done + 1 :]],
                *self.guess[max(len(nodes), done + 1) :],
            ]
        else:
            # The text left the guess: what was guessed behind that place is only moved up.
            new = self.guess[done + 1 :]
        missing = len(self.guess) - len(new)
        self.guess[:] = [*new, *spread_prompt_tokens(self.prompt, missing)]

    def fork(self, session: Session, choice: int | None = None) -> JacobiGuess:
        return JacobiGuess(self.prompt, list(self.guess))

    def close(self) -> None:
        pass


def spread_prompt_tokens(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` tokens of the prompt, evenly apart: a first guess of anything, without a draw."""
    return tuple(prompt[len(prompt) * (2 * i + 1) // (2 * count)] for i in range(count))
