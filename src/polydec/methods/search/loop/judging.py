"""Judges of finished answers: a reward on the model's states, or a function of the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polydec.core.types import TokenCodec
from polydec.methods.search.loop.attempt import SearchAttempt
from polydec.methods.search.loop.protocols import ProcessReward
from polydec.methods.search.loop.stats import SearchStats


class AttemptJudge(Protocol):
    """A verifier of answers."""

    async def judge_attempt(self, attempt: SearchAttempt) -> None:
        """Set the attempt's value, 0 to 1."""
        ...


@dataclass(frozen=True)
class StateJudge:
    """A reward that reads the model's state after the answer.

    Attributes:
        reward: The process reward.
    """

    reward: ProcessReward

    async def judge_attempt(self, attempt: SearchAttempt) -> None:
        await attempt.ask_reward(self.reward)


@dataclass(frozen=True)
class AttemptTextJudge:
    """A function of the answer's text, without its end, that says 0 to 1.

    For instance the share of tests that it passes, or a classifier's probability. It feeds nothing.
    For a model without a tokenizer it reads the ids as numbers.

    Attributes:
        chance: Value of a text, 0 to 1.
        words: Decodes the tokens. None: there is no tokenizer.
    """

    chance: Callable[[str], float]
    words: TokenCodec | None

    async def judge_attempt(self, attempt: SearchAttempt) -> None:
        text = attempt.text
        kept = [x for x in text.tokens if x not in text.ends]
        if self.words is None:
            written = " ".join(map(str, kept))
        else:
            written = self.words.decode(kept)
        attempt.value = self.chance(written)
        attempt.spent = attempt.spent.plus_stats(SearchStats(judged=1))
