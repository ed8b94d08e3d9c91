"""How right and how exact answers are, held against answers that go from fine to coarse."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
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


COARSER = """Question: {question}
Answer: {answer}
What is known of the answer: {description}
Coarser answers that are right too, a line each, from the most exact to the vaguest:
1. {answer}
2."""
"""What a model is asked for an answer's coarser levels; ours, the paper's is not known to us."""
TRIVIAL = """Question: {question}
Answers that anybody could give who knows nothing but the question, a line each:
1."""
"""What a model is asked for what an answer must not be."""


def enriched(
    question: str,
    right: Sequence[str],
    description: str,
    ask: Callable[[str], str],
    most: int = 4,
) -> Gold:
    """The right answer (its spellings, at least one) and, from what is known of it, coarser ones, the finest first, at most
    `most` levels in all. ask: what a model says to a prompt. Levels that the question alone gives away, and those that say what
    a finer one says, are left out.

    Source: Yona, Aharoni and Geva, "Narrowing the knowledge evaluation gap: open-domain question answering with
    multi-granularity answers" (2024).
    """
    if not right or most < 1:
        raise RequestError(
            f"right has {len(right)} spellings and most is {most}: at least 1 of each"
        )
    fields = {"question": question, "answer": right[0], "description": description}
    known = [words(line) for line in listed(ask(TRIVIAL.format(**fields)))] + [words(question)]
    gold, seen = [tuple(right)], [words(spelling) for spelling in right]
    for line in listed(ask(COARSER.format(**fields))):
        if len(gold) < most and words(line) and words(line) not in (*known, *seen):
            gold.append((line,))
            seen.append(words(line))
    return tuple(gold)


def listed(said: str) -> list[str]:
    """The lines of a list that a model wrote, without what numbers them; it ends at the first empty line."""
    lines = said.strip().split("\n")
    end = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    return [
        re.sub(r"^\s*(?:\d{1,2}[.)]|[-*•])\s*", "", line).strip().rstrip(".")
        for line in lines[:end]
    ]
