"""One of some texts."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import shown
from polydec.constraints import pieces
from polydec.core.types import Vocab

MOST, LONGEST = 10_000, 200_000
"""Texts of a constraint, and characters of all of them together: each takes a few hundred bytes while it is kept to."""


@dataclass(frozen=True)
class AnyOf:
    """The answer is one of `texts`, spelled in whatever tokens.

    Every spelling is allowed, as by a grammar. A text's probability is that of all its spellings; the mask then takes away
    what is another text and nothing else. The tokenizer's own spelling also depends on what stands before the answer, which
    a constraint does not see.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.texts, str) or not 1 <= len(self.texts) <= MOST:
            raise RequestError(f"choice is {shown(self.texts)}: it must be 1 to {MOST} texts")
        for i, text in enumerate(self.texts):
            if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RequestError(
                    f"choice[{i}] is {shown(text)}: it must be a text of at least one character"
                )
            whole_text(text, f"choice[{i}]")
        if sum(map(len, self.texts)) > LONGEST:
            raise RequestError(
                f"choice has {sum(map(len, self.texts))} characters: all texts together may have {LONGEST}"
            )

    def language(self, vocab: Vocab, ends: frozenset[int]) -> Choices:
        strings = [text.encode() for text in self.texts]
        choices = Choices(Trie.of(strings), pieces.of(vocab, ends), ends)
        for i, string in enumerate(strings):
            if not choices.spells(string):
                raise RequestError(
                    f"choice[{i}] is {shown(self.texts[i])}: no tokens of this model spell it"
                )
        _ = choices._open  # here, where nobody waits, and not with the first token
        return choices


@dataclass(frozen=True, eq=False)
class Trie:
    """Byte strings by their beginnings. below: of each node the next ones by byte; whole: whether a string ends there. Node 0
    is the empty string; nodes come after the one above them."""

    below: tuple[dict[int, int], ...]
    whole: tuple[bool, ...]

    @staticmethod
    def of(strings: Sequence[bytes]) -> Trie:
        below, whole = [dict[int, int]()], [False]
        for string in strings:
            node = 0
            for byte in string:
                if byte not in below[node]:
                    below[node][byte] = len(below)
                    below.append({})
                    whole.append(False)
                node = below[node][byte]
            whole[node] = True
        return Trie(tuple(below), tuple(whole))


DEAD, ENDED = -1, -2


@dataclass(frozen=True, eq=False)
class Choices:
    """The language of an AnyOf. A state is a node of the trie, or DEAD, or ENDED."""

    trie: Trie
    pieces: tuple[bytes | None, ...]
    ends: frozenset[int]
    finite = True
    _known: dict[int, dict[int, int]] = field(
        default_factory=dict[int, dict[int, int]], init=False, repr=False
    )

    @cached_property
    def _open(self) -> list[bool]:
        """Of each node whether tokens spell the rest of a string from there."""
        out = [False] * len(self.trie.below)
        for node in reversed(range(len(out))):
            out[node] = self.trie.whole[node] or any(out[there] for _, there in self._walk(node))
        return out

    @cached_property
    def _spelled(self) -> tuple[dict[bytes, tuple[int, ...]], int, list[bytes]]:
        """The ids of each piece, the length of the longest, and all pieces in order. Looked up once: it takes as long as all
        pieces to be found again."""
        return *pieces.by_bytes(self.pieces), pieces.ordered(self.pieces)

    def _walk(self, node: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """The tokens that go on from a node, and where they lead; also to where nothing goes on. Short ones come first."""
        ids, _, ordered = self._spelled
        paths = deque([(b"", node)])
        while paths:
            path, at = paths.popleft()
            if path in ids:
                yield ids[path], at
            for byte, there in self.trie.below[at].items():
                longer = path + bytes((byte,))
                first = bisect_left(ordered, longer)
                if first < len(ordered) and ordered[first].startswith(longer):
                    paths.append((longer, there))

    def followers(self, state: int) -> dict[int, int]:
        """The tokens that may be written behind a text, and where each leads. Ends are not among them."""
        if state < 0:
            return {}
        if state not in self._known:
            self._known[state] = {
                x: there for tokens, there in self._walk(state) if self._open[there] for x in tokens
            }
        return self._known[state]

    def spells(self, string: bytes) -> bool:
        """Whether some tokens spell a string."""
        ids, longest, _ = self._spelled
        reached = [True]
        for end in range(1, len(string) + 1):
            reached.append(
                any(  # the short ones first: mostly there is one of a byte
                    reached[begin] and string[begin:end] in ids
                    for begin in range(end - 1, max(0, end - longest) - 1, -1)
                )
            )
        return reached[-1]

    def start(self) -> int:
        return 0

    def step(self, state: int, token: int) -> int:
        if state >= 0 and token in self.ends and self.trie.whole[state]:
            return ENDED
        return self.followers(state).get(token, DEAD)

    def allows(self, state: int, token: int) -> bool:
        return self.step(state, token) != DEAD

    def mask(self, state: int) -> Tensor:
        out_V = torch.zeros(len(self.pieces), dtype=torch.bool)
        out_V[list(self.followers(state))] = True
        if state >= 0 and self.trie.whole[state]:
            out_V[[x for x in self.ends if 0 <= x < len(out_V)]] = True
        return out_V

    def forced(self, state: int) -> bytes:
        out = bytearray()
        while state >= 0 and not self.trie.whole[state] and len(self.trie.below[state]) == 1:
            ((byte, state),) = self.trie.below[state].items()
            out.append(byte)
        return bytes(out)
