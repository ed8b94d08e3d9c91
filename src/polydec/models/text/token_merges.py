"""Neighbouring tokens of some texts that are read as one, the pairs that stand most often first (BPE
over a batch, on top of a tokenizer)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush

TokenUnit = tuple[int, ...]
"""What is read as one: token ids of the tokenizer, one or more."""

PRETOKEN = re.compile(r" ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+")
"""One piece of text as a pretokenizer cuts it: a run of letters, of digits or of other marks, each with
the blank before it, or of blanks."""


def is_one_word(text: str) -> bool:
    """Whether a cut at blanks gives one word."""
    return len(text.split()) == 1


def is_one_pretoken(text: str) -> bool:
    """Whether a pretokenizer leaves the text whole."""
    return PRETOKEN.fullmatch(text) is not None


BOUNDARIES: Mapping[str, Callable[[str], bool] | None] = {
    "word": is_one_word,
    "pretoken": is_one_pretoken,
    "sentence": None,
}
"""What one unit may hold, of the text that it stands for; None: anything but special tokens."""


def frequent_units(rows: Sequence[Sequence[TokenUnit]], count: int) -> tuple[TokenUnit, ...]:
    """The units of several tokens that stand most often in some rows, the first ones on a tie.

    Args:
        rows: Units of each text.
        count: How many, at most.

    Returns:
        The units, the most frequent first.
    """
    found = Counter(unit for row in rows for unit in row if len(unit) > 1)
    return tuple(unit for unit, _ in found.most_common(count))


def split_by_longest(tokens: Sequence[int], known: Collection[TokenUnit]) -> list[TokenUnit]:
    """Cut a text into known units, at each place the longest one that stands there.

    Args:
        tokens: Token ids.
        known: Units of several tokens; anything else stays a token.

    Returns:
        The units.
    """
    longest = max(map(len, known), default=1)
    out = list[TokenUnit]()
    while tokens:
        sizes = range(min(longest, len(tokens)), 1, -1)
        size = next((n for n in sizes if tuple(tokens[:n]) in known), 1)
        out.append(tuple(tokens[:size]))
        tokens = tokens[size:]
    return out


@dataclass(frozen=True)
class TokenMerger:
    """Merges neighbouring tokens.

    A pair is merged where its text keeps to a boundary. Beside that a unit of another boundary than
    "sentence" has a blank at its beginning alone, or is nothing but blanks, and no empty line; bytes
    that are no whole characters yet may always go together. Special tokens stay alone.

    Exact: nothing is changed: the units' tokens, one after another, are the text's.
    Reduces to: the tokens themselves, with no merge.
    Source: Feher, Vulić and Minixhofer, "Retrofitting large language models with dynamic
    tokenization" (2024).

    Attributes:
        pieces: Of each token id its bytes; None for those that write nothing.
        boundary: A name of `BOUNDARIES`.
        longest: Tokens of a unit, at most.
    """

    pieces: Sequence[bytes | None]
    boundary: str
    longest: int

    def allows_unit(self, unit: TokenUnit) -> bool:
        """Whether these tokens may be one unit."""
        # Ids past the vocabulary stand for vectors (a soft prompt) and are kept as they are.
        parts = [self.pieces[x] if x < len(self.pieces) else None for x in unit]
        told = [part for part in parts if part is not None]
        if len(unit) > self.longest or len(told) < len(unit) or not all(told):
            return False
        rule = BOUNDARIES[self.boundary]
        if rule is None:
            return True
        spelled = b"".join(told)
        # Bytes are looked at, not characters: a unit may end inside a character, and these
        # blanks are no part of a longer character in UTF-8.
        inner = bool(spelled.strip()) and any(x in b" \t\r\n" for x in spelled[1:])
        if inner or b"\n\n" in spelled:
            return False
        try:
            # Half a character cannot be judged by a rule about text, so it may always be completed.
            return rule(spelled.decode())
        except UnicodeDecodeError:
            return True

    def merge_rows(
        self, rows: Sequence[Sequence[int]], merges: int | None = None, down_to: int = 0
    ) -> list[list[TokenUnit]]:
        """Merge the most frequent pair of all rows, again and again.

        Each merge takes all its places that do not overlap, from left to right; of pairs that stand
        equally often the one that stands first is merged.

        Args:
            rows: Token ids of each text.
            merges: How many pairs are merged; None: as many as there are.
            down_to: Merging ends where no more units than so many are left in all rows. Default 0.

        Returns:
            The units of each row.
        """
        # One list for all rows; an empty unit ends each of them, with which nothing is merged.
        units = list[TokenUnit]()
        for row in rows:
            units += [(x,) for x in row]
            units.append(())
        # Places are never moved: a merged unit stays at its first place, and neighbours are
        # found by these links.
        before = [i - 1 for i in range(len(units))]
        after = [i + 1 for i in range(len(units))]
        left = len(units) - len(rows)
        # The same pair is asked for at each of its places; decoding it once is enough.
        allowed = cache(self.allows_unit)
        # Of each pair the places of its first unit.
        where = dict[tuple[TokenUnit, TokenUnit], set[int]]()

        def note_pair(i: int, there: bool) -> tuple[TokenUnit, TokenUnit] | None:
            """Note that a pair begins at a place, or that it does no longer.

            Args:
                i: The place of its first unit; there may be no unit, or none behind it.
                there: Whether it begins there.

            Returns:
                The pair; None where none may be merged.
            """
            if i < 0 or after[i] >= len(units) or not units[i] or not units[after[i]]:
                return None
            pair = (units[i], units[after[i]])
            if not allowed(pair[0] + pair[1]):
                return None
            if there:
                where.setdefault(pair, set()).add(i)
            else:
                where[pair].discard(i)
            return pair

        for i in range(len(units)):
            note_pair(i, True)
        # The most frequent pair first, of equal ones that of the first place. An entry is what was
        # true when it was made, so it is compared when it is taken.
        heap = [(-len(at), min(at), pair) for pair, at in where.items()]
        heapify(heap)
        # One merge may take many places, so the end may lie a little below `down_to`.
        while heap and left > down_to and merges != 0:
            count, first, pair = heappop(heap)
            places = where[pair]
            if not places:
                continue
            if (count, first) != (-len(places), min(places)):
                heappush(heap, (-len(places), min(places), pair))
                continue
            changed = set[tuple[TokenUnit, TokenUnit]]()
            for i in sorted(places):
                # A place that overlaps with the one before it is gone.
                if i not in places:
                    continue
                j = after[i]
                # All three pairs that touch these two units end, before the units change.
                for at in (before[i], i, j):
                    note_pair(at, False)
                units[i] = units[i] + units[j]
                units[j] = ()
                after[i] = after[j]
                before[after[i]] = i
                left -= 1
                made = (note_pair(before[i], True), note_pair(i, True))
                changed.update(p for p in made if p is not None)
            # Pairs that became rarer keep their old entry, which is corrected when it is taken.
            for p in changed:
                if where[p]:
                    heappush(heap, (-len(where[p]), min(where[p]), p))
            if merges is not None:
                merges -= 1
        out = list[list[TokenUnit]]()
        # Each row takes back its own places, without the empty unit that ended it.
        at = 0
        for row in rows:
            end = at + len(row)
            out.append([unit for unit in units[at:end] if unit])
            at = end + 1
        return out

    def merge_by_share(self, rows: Sequence[Sequence[int]], share: float) -> list[list[TokenUnit]]:
        """Merge a share of the way to as few units as the boundary allows.

        Args:
            rows: Token ids of each text.
            share: 0: the tokens themselves; 1: no pair is left that may be merged.

        Returns:
            The units of each row.
        """
        tokens = sum(map(len, rows))
        # How far merging can go is only known once it was done, so it is done twice.
        fewest = sum(map(len, self.merge_rows(rows)))
        # The tiny summand keeps a product such as 0.3 x 10 from falling below its whole number.
        return self.merge_rows(rows, down_to=tokens - int(share * (tokens - fewest) + 1e-9))
