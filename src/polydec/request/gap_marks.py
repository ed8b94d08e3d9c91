"""The marks by which a model that continues texts reads gaps, and fills them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from polydec.models.text.tokenizer import Tokenizer

GAP = "<|gap:{}|>"
FILLED = "<|filled|>"
"""The marks of such a model: in the place of gap k, and behind what fills one."""


@dataclass(frozen=True)
class GapMarks:
    """The tokens by which a model reads and fills gaps.

    Attributes:
        gaps: The mark of each gap, in order; a text has no more gaps than these.
        filled: Ends what fills a gap.
    """

    gaps: tuple[int, ...]
    filled: int

    def context_tokens(self, given: Sequence[int | None]) -> int:
        """Tokens of a context that an answer with gaps takes, what fills them included."""
        # A mark in the text, the same one behind it, and the end of what fills it.
        return len(given) + 3 * len(split_at_gaps(given)[1])


def find_gap_marks(text: Tokenizer) -> GapMarks | None:
    """The marks of a tokenizer; None where the model was not trained to fill gaps of a text that it
    continues."""
    # Marks are special tokens: a text that spells one is read as it, as with all control tokens.
    added = text.tokenizer.get_added_tokens_decoder()
    ids = {token.content: token_id for token_id, token in added.items()}
    gaps = list[int]()
    # They are numbered from 0 without a hole.
    while (mark := ids.get(GAP.format(len(gaps)))) is not None:
        gaps.append(mark)
    if FILLED not in ids or not gaps:
        return None
    return GapMarks(tuple(gaps), ids[FILLED])


def split_at_gaps(
    given: Sequence[int | None],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """The parts of an answer around its gaps, one more than there are gaps, and the gaps' sizes."""
    # A text that begins with a gap has an empty part before it.
    parts: list[tuple[int, ...]] = [()]
    sizes = list[int]()
    for is_gap, run in groupby(given, lambda x: x is None):
        if is_gap:
            sizes.append(len(list(run)))
            parts.append(())
        else:
            parts[-1] = tuple(x for x in run if x is not None)
    return parts, sizes
