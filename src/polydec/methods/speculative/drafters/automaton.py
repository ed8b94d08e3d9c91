"""Every run of tokens that stands in a sequence, how often, where last, and what followed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CHAIN = 64
"""Of each new token this many suffixes, the longest ones, are counted: in a text that repeats itself there are as many as
there are tokens."""


class SuffixAutomaton:
    """The suffix automaton of a sequence, grown a token at a time: each state stands for strings that end at the same
    places. A state's lists: length of its longest string, link to the longest suffix with other places, transitions,
    how many places, and the last one."""

    __slots__ = ("count", "last", "length", "link", "next", "size", "tip")

    def __init__(self) -> None:
        self.length = [0]
        self.link = [-1]
        self.count = [0]
        self.last = [0]
        self.next: list[dict[int, int]] = [{}]
        self.tip = self.size = 0

    def extend(self, token: int) -> None:
        """Amortised constant, but for the counts (at most CHAIN states)."""
        length = self.length
        link = self.link
        follow = self.next
        self.size += 1
        new = len(length)
        p = self.tip
        length.append(length[p] + 1)
        link.append(0)
        follow.append({})
        self.count.append(0)
        self.last.append(0)
        while p >= 0 and token not in follow[p]:
            follow[p][token] = new
            p = link[p]
        if p >= 0:
            q = follow[p][token]
            if length[q] == length[p] + 1:
                link[new] = q
            else:
                link[new] = self._split(p, q, token)
        self.tip = v = new
        for _ in range(CHAIN):
            self.count[v] += 1
            self.last[v] = self.size
            v = link[v]
            if v <= 0:
                break

    def _split(self, p: int, q: int, token: int) -> int:
        """The shorter strings of state q, which end in more places from now on, become a state of their own."""
        twin = len(self.length)
        self.length.append(self.length[p] + 1)
        self.link.append(self.link[q])
        self.next.append(dict(self.next[q]))
        self.count.append(self.count[q])
        self.last.append(self.last[q])
        self.link[q] = twin
        while p >= 0 and self.next[p].get(token) == q:
            self.next[p][token] = twin
            p = self.link[p]
        return twin

    @property
    def match(self) -> tuple[int, int]:
        """(state, length) of the longest suffix that ends in an earlier place as well; (0, 0) for none."""
        state = max(self.link[self.tip], 0)
        return state, self.length[state]

    def resumed(self, state: int, length: int) -> tuple[int, int]:
        """The same match; at the end of the sequence, where nothing follows, that of its longest suffix that stood before."""
        if state == self.tip:
            return self.match
        return (state, length)

    def state_of(self, state: int, length: int) -> int:
        """Where the match of this length is now, if `state` was split since it was found."""
        while state and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix of (the matched string, token) that stands in the sequence."""
        state = self.state_of(state, length)
        while state and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        target = self.next[state].get(token)
        if target is None:
            return (0, 0)
        return (target, length + 1)

    def after(self, state: int) -> list[tuple[int, int, int]]:
        """(count, last place, token) of what followed, most frequent first, the latest on a tie."""
        return sorted(
            ((self.count[v], self.last[v], x) for x, v in self.next[state].items() if x >= 0),
            reverse=True,
        )

    def copy(self) -> SuffixAutomaton:
        twin = SuffixAutomaton()
        twin.length = self.length[:]
        twin.link = self.link[:]
        twin.count = self.count[:]
        twin.last = self.last[:]
        twin.next = [dict(d) for d in self.next]
        twin.tip = self.tip
        twin.size = self.size
        return twin


@dataclass(frozen=True)
class SuffixStore:
    """Sequences of tokens that many requests may copy from. Given to a drafter it outlives a request; drafts made from it
    can show to one request what stands in another."""

    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    @staticmethod
    def of(corpus: Iterable[Sequence[int]]) -> SuffixStore:
        store = SuffixStore()
        for tokens in corpus:
            store.add(tokens)
        return store

    def add(self, tokens: Sequence[int]) -> None:
        """Append a sequence; no match runs over its ends."""
        # A separator that never comes back.
        for x in (*tokens, -1 - self.automaton.size):
            self.automaton.extend(x)
