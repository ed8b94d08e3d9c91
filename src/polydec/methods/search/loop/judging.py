"""Who says what a finished answer is worth: a reward on the model's own states, or anything that reads its text."""

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

    async def judge(self, attempt: SearchAttempt) -> None:
        """Set the attempt's value, 0 to 1."""
        ...


@dataclass(frozen=True)
class StateJudge:
    """A reward that reads the model's state behind the answer."""

    reward: ProcessReward

    async def judge(self, attempt: SearchAttempt) -> None:
        await attempt.judge(self.reward)


@dataclass(frozen=True)
class AttemptTextJudge:
    """A function of the answer's text, what ended it left out, that says 0 to 1: the share of tests that it passes, a
    classifier's probability. It feeds nothing. Of a model without a tokenizer it reads the ids as numbers."""

    chance: Callable[[str], float]
    words: TokenCodec | None

    async def judge(self, attempt: SearchAttempt) -> None:
        text = attempt.text
        kept = [x for x in text.tokens if x not in text.ends]
        if self.words is None:
            written = " ".join(map(str, kept))
        else:
            written = self.words.decode(kept)
        attempt.value = self.chance(written)
        attempt.spent = attempt.spent.plus(SearchStats(judged=1))
