"""How a search compares texts of different lengths, and when it need not go on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LengthRanking:
    """A text's score is its total (summed log-probabilities, what a search charges taken off) over length ** length_penalty;
    length: tokens of the answer, its end counted.

    length_penalty: alpha, -10 to 10; 0: the total itself; above it longer texts are favoured, below it shorter ones.
    early: when a search that holds as many ended texts as it keeps is done. True: at once; False: when its best living text,
    at its length now, scores no better than the worst of these (a guess, where alpha is above 0); None: when no living text
    can score better any more, however long it gets. They are transformers' True, False and "never".
    """

    length_penalty: float = 1.0
    early: bool | None = None

    def score(self, total: float, length: int) -> float:
        return total / length**self.length_penalty

    def settled(self, worst: float, total: float, length: int, limit: int) -> bool:
        """Whether a search that holds enough ended texts, the worst of them scored `worst`, is done. total, length: of its best
        living text; limit: tokens that a text may have. Totals only fall, so a text scores best at its length now or, where
        length is favoured, at the limit."""
        if self.early is not None:
            return self.early or self.score(total, length) <= worst
        return self.score(total, limit if self.length_penalty > 0.0 else length) <= worst


LIKELIEST = LengthRanking()
"""By the mean log-probability of a token, and nothing is left out."""
