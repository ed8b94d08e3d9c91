"""What a drafter that holds several others asks for them and tells them."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.core.protocols import DraftScores
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import Verdict


def combined_want(guesses: Sequence[DraftGuess]) -> ScoreRequest:
    """What some of them want; at least one is needed."""
    wants = [g.want for g in guesses]
    return ScoreRequest(
        max(w.law for w in wants),
        max(w.base for w in wants),
        any(w.hidden for w in wants),
        any(w.prompt for w in wants),
        tuple(sorted({e for w in wants for e in w.exits})),
        any(w.last for w in wants),
    )


def combined_price_ms(guesses: Sequence[DraftGuess]) -> float:
    """What asking all of them takes, in milliseconds."""
    return sum(g.price for g in guesses)


def teach_all_guesses(
    guesses: Sequence[DraftGuess], draft: Draft, scores: DraftScores, verdict: Verdict
) -> None:
    """All learn from a pass; from the prompt those that want its rows."""
    for guess in guesses:
        if not verdict.prompt or reads_prompt(guess):
            guess.learn(draft, scores, verdict)


def reads_prompt(guess: DraftGuess) -> bool:
    """Whether it learns from the prompt. One that wants its last row alone may be shown all of them."""
    return guess.want.prompt or guess.want.last
