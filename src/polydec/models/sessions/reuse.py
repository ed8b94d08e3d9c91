"""What a request takes of the cache of an earlier text, whose beginning it shares, or whose parts
(Positional Integrity Encoding, He et al., ICLR 2025: "Let the Code LLM Edit Itself When You Edit
the Code").

A key names a text that is edited: its requests follow one another, and each leaves its cache to the
next. With "prefix" the next one takes what both begin with. With "edited" it takes what stands
after an edit, too: keys are turned to their new positions, and what is new is fed, with a few
tokens after it. What was taken so was computed with the old text in view, so the law is approximate
from there on. Nobody but the key's next request is given such entries, and they are never computed
anew in silence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = 16
"""Texts that are kept for the requests of their keys."""

IDLE = 600.0
"""Seconds behind its last request from which on a key's text makes room for another one."""

LEAST = 32
"""Tokens that must agree in a row for their entries to be turned to another place."""

AGAIN = 16
"""Tokens right behind an edit that are fed again where nobody says how many, as theirs are the
entries that the edit changes most. The published rule feeds the text's last token alone, which every
request does: 0 of these."""


def cache_owner(cache_salt: str) -> str:
    """Whose salt it is, where memory is shared evenly: what stands before the first colon.

    A server writes its client and a colon before the salts of requests. So a client that makes up
    many salts has no more room than another one.
    """
    return cache_salt.partition(":")[0]


@dataclass(frozen=True, slots=True)
class CachedText:
    """A text and the cache of it.

    Attributes:
        text: Its token ids.
        cache: The cache that holds all of it.
        edited: Entries from there on were computed with another text in view; None: none was.
        at: When it was stored, in seconds of the clock.
    """

    text: tuple[int, ...]
    cache: Any
    edited: int | None
    at: float


@dataclass(frozen=True, slots=True)
class CacheGraft:
    """Entries of an older text's cache that take a place in a new text.

    Attributes:
        at: Position of the first of them in the new text.
        cache: The older text's cache.
        first: The first of them in that cache.
        stop: The entry after the last one.
    """

    at: int
    cache: Any
    first: int
    stop: int

    @property
    def end(self) -> int:
        """The position after them in the new text."""
        return self.at + self.stop - self.first


class KeyedTextCache:
    """The texts of some keys, of each the last one.

    Bounded: where there are KEYS of them, another key's text takes the place of the one that was
    idle the longest, if that was for IDLE seconds, else of the oldest of an owner (`cache_owner`)
    that has more of them than its own will have, and is not stored else. So a key that is in use
    keeps its text, whatever else runs under its salt. A key names a text of its own under each cache_salt.

    Args:
        clock: Gives the time in seconds. Default: the monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept = dict[tuple[str, str], CachedText]()

    @property
    def caches(self) -> list[Any]:
        """The caches of all texts."""
        return [kept.cache for kept in self._kept.values()]

    def take_text(self, key: str, cache_salt: str = "") -> CachedText | None:
        """The text of a key, which stays.

        Args:
            key: The key.
            cache_salt: Salt of the key's requests. Default "".

        Returns:
            The text and its cache; None: there is none.
        """
        return self._kept.get((cache_salt, key))

    def store_text(
        self,
        key: str,
        text: tuple[int, ...],
        cache: Any,
        edited: int | None,
        cache_salt: str = "",
    ) -> None:
        """Store the text of a key in place of an older one, where there is room for it.

        Args:
            key: The key.
            text: Token ids.
            cache: The cache that holds all of them; it goes over to this store.
            edited: Entries from there on were computed with another text in view; None: none was.
            cache_salt: Salt of the key's requests. Default "".
        """
        now = self._clock()
        place = (cache_salt, key)
        if place not in self._kept and len(self._kept) >= KEYS:
            evicted = self._evictable(cache_salt, now)
            if evicted is None:
                return
            del self._kept[evicted]
        # It copies what it shares, so that the caches it shares with can go.
        cache.copy_shared()
        self._kept[place] = CachedText(text, cache, edited, now)

    def _evictable(self, cache_salt: str, now: float) -> tuple[str, str] | None:
        """Whose place a further text of this salt takes; None: there is none."""
        oldest = min(self._kept, key=lambda other: self._kept[other].at)
        if now - self._kept[oldest].at >= IDLE:
            return oldest
        texts_of = Counter(cache_owner(salt) for salt, _ in self._kept)
        # The owner that has the most texts gives up its oldest one.
        largest, count = texts_of.most_common(1)[0]
        # None has more texts than this one would have: nobody gives up one for it.
        if count <= texts_of[cache_owner(cache_salt)] + 1:
            return None
        return min(
            (place for place in self._kept if cache_owner(place[0]) == largest),
            key=lambda place: self._kept[place].at,
        )

    def forget_text(self, key: str, cache_salt: str = "") -> None:
        """Drop the text of a key.

        Args:
            key: The key.
            cache_salt: Salt of the key's requests. Default "".
        """
        self._kept.pop((cache_salt, key), None)


class CacheReuse:
    """What one request takes of its key's text.

    Attributes:
        texts: The texts of all keys.
        key: The request's key.
        edited: Whether it may take what stands after an edit.
        cache_salt: Salt of the request.
        again: Tokens right behind an edit that are fed again, at least 0.
        positions: Positions of the prompt that were taken and not fed.
        turned: Those of them that stood at other positions.
        approximate: Whether the law is not that of the text alone.
    """

    def __init__(
        self,
        texts: KeyedTextCache,
        key: str,
        edited: bool,
        cache_salt: str = "",
        again: int = AGAIN,
    ) -> None:
        self.texts = texts
        self.key = key
        self.edited = edited
        self.cache_salt = cache_salt
        self.again = again
        self.positions = 0
        self.turned = 0
        self.approximate = False

    @property
    def told(self) -> dict[str, Any]:
        """The account of it, as results name it."""
        return {
            "name": "edited" if self.edited else "prefix",
            "positions": self.positions,
            "turned": self.turned,
            "approximate": self.approximate,
        }

    def note_reuse(self, n: int, grafts: Sequence[CacheGraft], edited: int | None) -> None:
        """Note what was taken of the key's text.

        Args:
            n: Entries from the beginning that were taken.
            grafts: Further entries that were taken.
            edited: Of the first n, entries from there on were computed with another text in view;
                None: none was.
        """
        self.turned = sum(graft.stop - graft.first for graft in grafts)
        self.positions = n + self.turned
        self.approximate = bool(grafts) or edited is not None

    def same_text(self, other: CacheReuse) -> bool:
        """Whether both are about one text."""
        mine = (self.key, self.cache_salt)
        others = (other.key, other.cache_salt)
        return self.texts is other.texts and mine == others

    def known_text(
        self, text: Sequence[int]
    ) -> tuple[CachedText | None, int, tuple[CacheGraft, ...]]:
        """The text of the key, how many tokens of it this one begins with, and what else of it
        stands in this one."""
        kept = self.texts.take_text(self.key, self.cache_salt)
        if kept is None:
            return None, 0, ()
        n = common_prefix_length(kept.text, text)
        if not self.edited:
            # With "prefix" the law is exact: entries that saw another text are not taken.
            return kept, n if kept.edited is None else min(n, kept.edited), ()
        if not n:  # the first token is what much attention rests on
            return kept, 0, ()
        found = find_common_runs(kept.text, text, n)
        return (
            kept,
            n,
            tuple(
                # The first tokens of a common run are fed again.
                CacheGraft(at + self.again, kept.cache, first + self.again, stop)
                for at, first, stop in found
                if stop - first > self.again
            ),
        )


def find_common_runs(
    old: Sequence[int], new: Sequence[int], begin: int
) -> list[tuple[int, int, int]]:
    """Find which parts of an old text stand in a new one.

    A part is found by LEAST tokens that stand once in the old text, as in a patience diff, and has
    at least twice as many tokens as are fed before it: after a larger edit little is left of what
    the old entries knew.

    Args:
        old: Token ids of the old text.
        new: Token ids of the new text.
        begin: Number of first tokens that both have in common; parts are looked for after them.

    Returns:
        (where, first, stop) of each part, in order: ``old[first:stop] == new[where:where + stop -
        first]``.
    """
    place = dict[tuple[int, ...], int]()
    for i in range(begin, len(old) - LEAST + 1):
        gram = tuple(old[i : i + LEAST])
        # Minus one: it stands there more than once, and says nothing about the place.
        place[gram] = -1 if gram in place else i
    out = list[tuple[int, int, int]]()
    behind_old = begin
    behind_new = begin
    j = begin
    while j <= len(new) - LEAST:
        i = place.get(tuple(new[j : j + LEAST]), -1)
        # Parts keep their order: one that stands before the last part in the old text is left out.
        if i < behind_old:
            j += 1
            continue
        # The run grows to both sides as far as the texts agree.
        n = LEAST + common_prefix_length(old[i + LEAST :], new[j + LEAST :])
        while i > behind_old and j > behind_new and old[i - 1] == new[j - 1]:
            i -= 1
            j -= 1
            n += 1
        # Long enough for what has to be fed before it.
        if n >= 2 * (j - behind_new):
            out.append((j, i, i + n))
            behind_old = i + n
            behind_new = j + n
        j += n
    return out


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items two sequences have in common.

    Bisection over slices: each step compares at the speed of tuples.

    Args:
        a: A sequence.
        b: Another one.

    Returns:
        The length of the longest common prefix.
    """
    low = 0
    high = min(len(a), len(b))
    if not high or a[0] != b[0]:
        return 0
    # Bisection on the length: equal slices up to `middle` mean that the prefix is at least that
    # long.
    while low < high:  # items below `low` are the same
        middle = (low + high + 1) // 2
        if tuple(a[low:middle]) == tuple(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
