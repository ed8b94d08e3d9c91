"""How right and how exact answers are, held against answers that go from fine to coarse."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError

Gold = Sequence[Sequence[str]]
"""The right answers to a question, the finest level first; of each level several spellings."""


@dataclass(frozen=True)
class Granularity:
    """How answers are matched and weighed. least: F1 of the words from which on an answer matches a spelling, above 0, to 1;
    fade: what a level costs, 0 or more: an answer of level i (0 the finest) weighs exp(-fade i), so at 0 all weigh the same;
    unknown: an answer that says nothing, and is never right.

    Source: Yona, Aharoni and Geva, "Narrowing the knowledge evaluation gap: open-domain question answering with
    multi-granularity answers" (2024); `least` and the default of `fade` are ours.
    """

    least: float = 0.55
    fade: float = math.log(2)
    unknown: str = "I don't know"

    def __post_init__(self) -> None:
        if not 0.0 < self.least <= 1.0:
            raise RequestError(f"least is {self.least}: it must be above 0, to 1")
        if not 0.0 <= self.fade < math.inf:
            raise RequestError(f"fade is {self.fade}: it must be at least 0, and finite")

    def level(self, said: str, gold: Gold) -> int | None:
        """The finest level that an answer matches; None: it is wrong, or says nothing."""
        if words(said) == words(self.unknown):
            return None
        return next(
            (
                i
                for i, spellings in enumerate(gold)
                if any(f1(said, right) >= self.least for right in spellings)
            ),
            None,
        )

    def figures(self, said: Sequence[str], gold: Sequence[Gold]) -> dict[str, float]:
        """Shares of the answers: accuracy (right at some level), standard accuracy (at the finest), informativeness (right
        ones weighed), knowledge gap (accuracy less standard accuracy), unknown. Raises RequestError without any answer."""
        if not said or len(said) != len(gold):
            raise RequestError(
                f"{len(said)} answers to {len(gold)} questions: there must be one to each, and at least one"
            )
        levels = [self.level(s, g) for s, g in zip(said, gold)]
        right, n = [i for i in levels if i is not None], len(said)
        accuracy, standard = len(right) / n, sum(i == 0 for i in right) / n
        return {
            "accuracy": accuracy,
            "standard accuracy": standard,
            "informativeness": sum(math.exp(-self.fade * i) for i in right) / n,
            "knowledge gap": accuracy - standard,
            "unknown": sum(words(s) == words(self.unknown) for s in said) / n,
        }


def words(text: str) -> list[str]:
    """Lower case, without punctuation and articles."""
    text = "".join(" " if c in string.punctuation else c for c in text.lower())
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(said: str, right: str) -> float:
    """Of the words of two answers; 1 where both have the same, 0 where none is in both."""
    a, b = Counter(words(said)), Counter(words(right))
    return 2 * (a & b).total() / max(1, a.total() + b.total())
