"""ROUGE of words, by which summaries and plans are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


def lower_case_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    # ROUGE's own tokens, which know Latin letters and digits only. Words are not stemmed.
    return re.findall(r"[a-z0-9]+", text.lower())


def rouge_f1(written: Sequence[str], meant: Sequence[str], order: int) -> float:
    """ROUGE-N of a text against a reference: the harmonic mean of precision and recall of n-grams.

    Args:
        written: Words of the text that is judged.
        meant: Words of the reference.
        order: Words of an n-gram, at least 1.

    Returns:
        0 to 1; 0 where one of them has no n-gram.
    """
    mine, theirs = (
        Counter(zip(*(words[i:] for i in range(order)), strict=False)) for words in (written, meant)
    )
    both = mine.total() + theirs.total()
    # An n-gram counts as often as it stands in both.
    return 2 * (mine & theirs).total() / both if both else 0.0


def mean_rouge(written: Sequence[str], meant: Sequence[str]) -> float:
    """The mean of ROUGE-1 and ROUGE-2.

    Args:
        written: Words of the text that is judged.
        meant: Words of the reference.

    Returns:
        0 to 1.
    """
    return (rouge_f1(written, meant, 1) + rouge_f1(written, meant, 2)) / 2
