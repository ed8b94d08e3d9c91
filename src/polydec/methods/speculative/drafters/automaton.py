"""Every run of tokens that stands in a sequence, how often, where last, and what followed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CHAIN = 64
"""Of each new token this many suffixes, the longest ones, are counted: in a text that repeats
itself there are as many as there are tokens."""


class SuffixAutomaton:
    """The suffix automaton of a sequence, grown one token at a time.

    Each state stands for the strings that end at the same places of the sequence; state 0 is the
    empty string.

    Attributes:
        length: Of each state the length of its longest string.
        link: Of each state the state of the longest suffix that ends at other places too, -1 for
            state 0.
        next: Of each state its transitions by token.
        count: Of each state how many places its strings end at, as far as counted (see CHAIN).
        last: Of each state the last of these places.
        tip: State of the full sequence.
        size: How many tokens the sequence has.
    """

    __slots__ = ("count", "last", "length", "link", "next", "size", "tip")

    def __init__(self) -> None:
        self.length = [0]
        self.link = [-1]
        self.count = [0]
        self.last = [0]
        self.next: list[dict[int, int]] = [{}]
        self.tip = self.size = 0

    def extend_by_token(self, token: int) -> None:
        """Append a token, in amortised constant time but for the counts of at most CHAIN states."""
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
        # All suffixes that nothing with this token followed so far get a transition to the new
        # state.
        while p >= 0 and token not in follow[p]:
            follow[p][token] = new
            p = link[p]
        if p >= 0:
            q = follow[p][token]
            # The suffix p followed by the token stood before. Where it is the longest string of its
            # state the link goes there; else that state is split at its length.
            if length[q] == length[p] + 1:
                link[new] = q
            else:
                link[new] = self._split(p, q, token)
        # Every suffix of the sequence ends here once more.
        self.tip = v = new
        for _ in range(CHAIN):
            self.count[v] += 1
            self.last[v] = self.size
            v = link[v]
            if v <= 0:
                break

    def _split(self, p: int, q: int, token: int) -> int:
        """Split state q: its shorter strings become a state of their own.

        They end in more places than the longer ones from now on.
        """
        twin = len(self.length)
        self.length.append(self.length[p] + 1)
        self.link.append(self.link[q])
        self.next.append(dict(self.next[q]))
        self.count.append(self.count[q])
        self.last.append(self.last[q])
        self.link[q] = twin
        # Shorter suffixes led to q by strings that the new state stands for now.
        while p >= 0 and self.next[p].get(token) == q:
            self.next[p][token] = twin
            p = self.link[p]
        return twin

    @property
    def match(self) -> tuple[int, int]:
        """(state, length) of the longest suffix that ends in an earlier place as well.

        (0, 0) for none.
        """
        state = max(self.link[self.tip], 0)
        return state, self.length[state]

    def resumed_match(self, state: int, length: int) -> tuple[int, int]:
        """A match that something follows.

        At the end of the sequence nothing does; then the match of its longest suffix that stood
        before takes its place.

        Args:
            state: State of the match.
            length: Length of the match, in tokens.

        Returns:
            State and length.
        """
        if state == self.tip:
            return self.match
        return (state, length)

    def state_of(self, state: int, length: int) -> int:
        """Where a match is now, if its state was split since it was found.

        Args:
            state: State of the match when it was found.
            length: Length of the match, in tokens.

        Returns:
            The state that stands for its string now.
        """
        # A split leaves the longer strings in the old state; the shorter ones are reached by its
        # link.
        while state and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state

    def next_match(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest suffix of the matched string and one more token that stands in the sequence.

        Args:
            state: State of the match.
            length: Length of the match, in tokens.
            token: The token that comes next.

        Returns:
            State and length of the new match; (0, 0) for none.
        """
        state = self.state_of(state, length)
        # Shorter suffixes are tried until the token follows one of them.
        while state and token not in self.next[state]:
            state = self.link[state]
            length = self.length[state]
        target = self.next[state].get(token)
        if target is None:
            return (0, 0)
        return (target, length + 1)

    def followers_of(self, state: int) -> list[tuple[int, int, int]]:
        """(count, last place, token) of what followed, most frequent first, the latest on a tie."""
        # Separators between sequences of a store have negative ids and are never proposed.
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
    """Sequences of tokens that many requests may copy from.

    Given to a drafter it outlives a request: drafts made from it can reveal to one request what
    stands in another.

    Attributes:
        automaton: The suffix automaton of all sequences, with separators between them.
    """

    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    @staticmethod
    def of_corpus(corpus: Iterable[Sequence[int]]) -> SuffixStore:
        """The store of some token sequences."""
        store = SuffixStore()
        for tokens in corpus:
            store.add_sequence(tokens)
        return store

    def add_sequence(self, tokens: Sequence[int]) -> None:
        """Append a sequence; no match runs over its ends."""
        # A separator that no other place has, so that no match runs from one sequence into the
        # next.
        for x in (*tokens, -1 - self.automaton.size):
            self.automaton.extend_by_token(x)
