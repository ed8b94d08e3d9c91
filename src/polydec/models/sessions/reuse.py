"""What a request takes of the cache of an earlier text, whose beginning it shares, or whose parts (Positional Integrity
Encoding, He et al., ICLR 2025: "Let the Code LLM Edit Itself When You Edit the Code").

A key names a text that is edited: its requests follow one another, and each leaves its cache to the next. With "prefix" the
next one takes what both begin with. With "edited" it takes what stands behind an edit, too: keys are turned to their new
positions, and what is new is fed, with a few tokens behind it. What was taken so was computed with the old text in view, so
the law is approximate from there on. Nobody but the key's next request is given such entries, and they are never computed
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
"""Tokens right behind an edit that are fed again, as theirs are the entries that the edit changes most."""


@dataclass(frozen=True, slots=True)
class CachedText:
    """A text and the cache of it. edited: entries from there on were computed with another text in view, None: none was."""

    text: tuple[int, ...]
    cache: Any
    edited: int | None
    at: float


@dataclass(frozen=True, slots=True)
class CacheGraft:
    """Entries [first, stop) of an older text's cache, which stand at position `at` of the new text."""

    at: int
    cache: Any
    first: int
    stop: int

    @property
    def end(self) -> int:
        """The position behind them in the new text."""
        return self.at + self.stop - self.first


class KeyedTextCache:
    """The texts of some keys, of each the last one. Bounded: where KEYS are kept, another key's text takes the place of the one
    that was idle the longest, if that was for IDLE seconds, else of the oldest of a salt that has more of them than its own
    will have, and is not kept else. So a key that is in use keeps its text, whatever else runs under its salt. clock: gives
    seconds. A key names a text of its own under each cache_salt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept = dict[tuple[str, str], CachedText]()

    @property
    def caches(self) -> list[Any]:
        return [kept.cache for kept in self._kept.values()]

    def take(self, key: str, cache_salt: str = "") -> CachedText | None:
        """The text of a key, which stays."""
        return self._kept.get((cache_salt, key))

    def put(
        self,
        key: str,
        text: tuple[int, ...],
        cache: Any,
        edited: int | None,
        cache_salt: str = "",
    ) -> None:
        """The text of a key from now on, where there is room for it."""
        now = self._clock()
        place = (cache_salt, key)
        if place not in self._kept and len(self._kept) >= KEYS:
            evicted = self._evictable(cache_salt, now)
            if evicted is None:
                return
            del self._kept[evicted]
        cache.own()
        self._kept[place] = CachedText(text, cache, edited, now)

    def _evictable(self, cache_salt: str, now: float) -> tuple[str, str] | None:
        """Whose place a further text of this salt takes; None: there is none."""
        oldest = min(self._kept, key=lambda other: self._kept[other].at)
        if now - self._kept[oldest].at >= IDLE:
            return oldest
        texts_of = Counter(salt for salt, _ in self._kept)
        largest, count = texts_of.most_common(1)[0]
        if count <= texts_of[cache_salt] + 1:
            return None
        return min((p for p in self._kept if p[0] == largest), key=lambda p: self._kept[p].at)

    def forget(self, key: str, cache_salt: str = "") -> None:
        """Nothing of a key is kept any more."""
        self._kept.pop((cache_salt, key), None)


class CacheReuse:
    """What one request takes of its key's text. edited: it may take what stands behind an edit; cache_salt: of the request.

    positions: of the prompt that were taken and not fed; turned: those of them that stood elsewhere; approximate: whether
    the law is not that of the text alone."""

    def __init__(self, texts: KeyedTextCache, key: str, edited: bool, cache_salt: str = "") -> None:
        self.texts = texts
        self.key = key
        self.edited = edited
        self.cache_salt = cache_salt
        self.positions = 0
        self.turned = 0
        self.approximate = False

    @property
    def told(self) -> dict[str, Any]:
        """As results name it."""
        return {
            "name": "edited" if self.edited else "prefix",
            "positions": self.positions,
            "turned": self.turned,
            "approximate": self.approximate,
        }

    def took(self, n: int, grafts: Sequence[CacheGraft], edited: int | None) -> None:
        """Note what was taken of the key's text: the first n entries, and these. edited: see Kept."""
        self.turned = sum(graft.stop - graft.first for graft in grafts)
        self.positions = n + self.turned
        self.approximate = bool(grafts) or edited is not None

    def follows(self, other: CacheReuse) -> bool:
        """Whether both are about one text."""
        mine = (self.key, self.cache_salt)
        others = (other.key, other.cache_salt)
        return self.texts is other.texts and mine == others

    def known(self, text: Sequence[int]) -> tuple[CachedText | None, int, tuple[CacheGraft, ...]]:
        """The text of the key, how many tokens of it this one begins with, and what else of it stands in this one."""
        kept = self.texts.take(self.key, self.cache_salt)
        if kept is None:
            return None, 0, ()
        n = common_prefix_length(kept.text, text)
        if not self.edited:
            return kept, n if kept.edited is None else min(n, kept.edited), ()
        if not n:  # the first token is what much attention rests on
            return kept, 0, ()
        found = find_common_runs(kept.text, text, n)
        return (
            kept,
            n,
            tuple(
                CacheGraft(at + AGAIN, kept.cache, first + AGAIN, stop) for at, first, stop in found
            ),
        )


def find_common_runs(
    old: Sequence[int], new: Sequence[int], begin: int
) -> list[tuple[int, int, int]]:
    """Which parts of an old text stand in a new one behind the first `begin` tokens of both: (where, first, stop) of each, in
    order, old[first:stop] == new[where:where + stop - first].

    A part is found by LEAST tokens that stand once in the old text, as in a patience diff, and has at least twice as many
    tokens as are fed before it: behind a larger edit little is left of what the old entries knew."""
    place = dict[tuple[int, ...], int]()
    for i in range(begin, len(old) - LEAST + 1):
        gram = tuple(old[i : i + LEAST])
        place[gram] = -1 if gram in place else i
    out = list[tuple[int, int, int]]()
    behind_old = begin
    behind_new = begin
    j = begin
    while j <= len(new) - LEAST:
        i = place.get(tuple(new[j : j + LEAST]), -1)
        if i < behind_old:
            j += 1
            continue
        n = LEAST + common_prefix_length(old[i + LEAST :], new[j + LEAST :])
        while i > behind_old and j > behind_new and old[i - 1] == new[j - 1]:
            i -= 1
            j -= 1
            n += 1
        if n >= 2 * (j - behind_new):
            out.append((j, i, i + n))
            behind_old = i + n
            behind_new = j + n
        j += n
    return out


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items are the same."""
    low = 0
    high = min(len(a), len(b))
    if not high or a[0] != b[0]:
        return 0
    while low < high:  # items below `low` are the same
        middle = (low + high + 1) // 2
        if tuple(a[low:middle]) == tuple(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
