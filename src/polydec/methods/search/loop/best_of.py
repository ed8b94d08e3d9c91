"""Pick the text of the highest score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.methods.search.loop.types import CandidateText


@dataclass(frozen=True)
class BestOfPicker:
    """Picks the text that a reward values most.

    Where no reward was asked, the text whose tokens are likeliest on average. The earliest begun
    wins a tie.
    """

    def pick_text(self, tries: Sequence[CandidateText]) -> int:
        return max(range(len(tries)), key=lambda i: candidate_score(tries[i]))


def candidate_score(tried: CandidateText) -> float:
    """Return what a reward says of a text, else its mean log-probability."""
    if tried.value is None:
        return tried.mean
    return tried.value
