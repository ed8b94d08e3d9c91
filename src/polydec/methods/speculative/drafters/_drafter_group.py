"""What a drafter that holds several others wants, and how these learn."""

from __future__ import annotations

from collections.abc import Sequence

from polydec.core.protocols import DraftScores
from polydec.core.types import Draft, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import Verdict


def combined_want(guesses: Sequence[DraftGuess]) -> ScoreRequest:
    """What any of them reads of a score; at least one guess is needed."""
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
    """Milliseconds that a proposal of all of them takes."""
    return sum(g.price for g in guesses)


def teach_all_guesses(
    guesses: Sequence[DraftGuess], draft: Draft, scores: DraftScores, verdict: Verdict
) -> None:
    """Let all guesses learn from a pass; from the prompt only those that read it.

    Args:
        guesses: Guesses at work on the same sequence.
        draft: The draft that the target has scored.
        scores: The target's scores at the nodes of the draft.
        verdict: The accepted nodes and the token that follows them.
    """
    for guess in guesses:
        # A guess that did not ask for the prompt would take it for text that was accepted.
        if not verdict.prompt or reads_prompt(guess):
            guess.learn_round(draft, scores, verdict)


def reads_prompt(guess: DraftGuess) -> bool:
    """Whether a guess learns from the prompt.

    One that wants the prompt's last row alone may be given all of them, where another guess reads
    these.
    """
    return guess.want.prompt or guess.want.last
