"""How a search compares texts of different lengths, and when it can stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LengthRanking:
    """Ranks texts of different lengths.

    A text's score is its total (summed log-probabilities, less what a search charges) over length
    ** length_penalty; length: tokens of the answer, its end counted.

    Attributes:
        length_penalty: alpha, -10 to 10. 0: the total itself; above 0 longer texts are favoured,
            below it shorter ones.
        early: When a search that holds as many ended texts as it keeps is done. True: at once;
            False: when its best living text, at its length now, scores no better than the worst of
            these (a guess, where alpha is above 0); None: when no living text can score better any
            more, however long it gets. They are transformers' True, False and "never".
    """

    length_penalty: float = 1.0
    early: bool | None = None

    def ranked_score(self, total: float, length: int) -> float:
        """Return a text's score.

        Args:
            total: Sum of its log-probabilities, less charges, in nats.
            length: Tokens of the answer, its end counted, at least 1.
        """
        return total / length**self.length_penalty

    def is_settled(self, worst: float, total: float, length: int, limit: int) -> bool:
        """Return whether a search that holds enough ended texts is done.

        Args:
            worst: Score of the worst of these texts.
            total: Total of the best living text.
            length: Tokens of that text.
            limit: Tokens that a text may have.
        """
        if self.early is not None:
            return self.early or self.ranked_score(total, length) <= worst
        # Totals only fall, so a text scores best at its length now or, where length is favoured, at
        # the limit.
        return self.ranked_score(total, limit if self.length_penalty > 0.0 else length) <= worst


LIKELIEST = LengthRanking()
"""By the mean log-probability of a token, and nothing is left out."""
