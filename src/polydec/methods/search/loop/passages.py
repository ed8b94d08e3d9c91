"""Ranks passages by how much they speak of a question (BM25)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log


@dataclass(frozen=True)
class PassageRanking:
    """Texts, ranked by Okapi's BM25.

    A word of the question counts the more often a passage has it, the fewer passages have it, and
    the shorter the passage is.

    Attributes:
        texts: The passages.
        often: How soon a word's repetitions stop counting (k1), at least 0.
        size: How much a passage's length counts (b), 0 to 1.
    """

    texts: tuple[str, ...]
    often: float = 1.2
    size: float = 0.75

    @cached_property
    def _counts(self) -> Sequence[Counter[str]]:
        return [Counter(words_of(text)) for text in self.texts]

    def passage_scores(self, question: str) -> list[float]:
        """Return the score of each passage; 0 where it has no word of the question."""
        counts = self._counts
        lengths = [sum(c.values()) for c in counts]
        mean = max(sum(lengths) / max(len(lengths), 1), 1e-9)
        out = [0.0] * len(counts)
        for word in set(words_of(question)):
            having = sum(word in c for c in counts)
            # Inverse document frequency, with one added so that it is never negative.
            rare = log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            for i, (c, n) in enumerate(zip(counts, lengths, strict=True)):
                told = c[word]
                bound = self.often * (1 - self.size + self.size * n / mean)
                out[i] += rare * told * (self.often + 1) / (told + bound)
        return out

    def best_passages(self, question: str, count: int) -> list[str]:
        """Return the best passages that have a word of the question, the best first.

        Args:
            question: Its words are looked for.
            count: Number of passages at most.
        """
        scores = self.passage_scores(question)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
        return [self.texts[i] for i in order if scores[i] > 0]


def words_of(text: str) -> list[str]:
    """Return the words of a text, in small letters."""
    return re.findall(r"\w+", text.lower())
