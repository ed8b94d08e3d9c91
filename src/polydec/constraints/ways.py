"""Ways out: tokens that lead from where a text stands to a legal end of it."""
from __future__ import annotations

import string
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polydec.constraints import pieces as spelled
from polydec.constraints.protocols import Language

CLOSERS, QUOTE, SPACES = frozenset(b"]}"), ord('"'), frozenset(b" \t\r\n")
UNUSUAL = frozenset(b'"\\-+.,')
"""What leads from one thing into the next, or makes it longer."""
BEHIND = (b",", b"]", b"}", b":")
"""What may stand behind a string of JSON."""
PROBES = (b"x", b"q", b"Z")
"""Where these may all be written, any text may."""
LASTS = (b".", b"!", b"?", b";", b")", b">", b"\n")
"""What may end a text that is not JSON."""
FAST = 32
"""So many tokens of a way out are as long as can be, to get on; those behind them as short as can be, to try every byte."""
FEW = 12
"""Of so many allowed tokens each is tried whether it is the last one, else one of each kind."""
PRINTABLE = tuple(x.encode() for x in string.ascii_letters + string.digits + string.punctuation)
OFTEN = 8
"""A first byte that was taken so often is avoided, if it ended nothing: a way out does not repeat itself without end."""
STATES = 24
"""Of so many states that differ in what they allow the followers are looked at, byte by byte, for the end of a string."""
CLOSE, STRING, COMMA, WORD, PLAIN, ODD, SPACE = range(7)
"""Kinds of tokens: closing brackets; the end of a string, with such behind it; a comma or a colon; letters and digits; other
plain text; beyond ASCII, or with what is UNUSUAL; white space anywhere."""


@dataclass(frozen=True, eq=False)
class Ways:
    """Chooses the tokens of ways out, for one vocabulary. Of each token its bytes, the first one, its kind; how it is ranked,
    smaller is sooner: where only some texts may follow, where a string may end as well, where any text may follow (inside a
    string, say), and where it may not end yet; and its length, in hundredths. quotes: those that may end a string; bytes:
    those of one printable character."""
    pieces: tuple[bytes | None, ...]
    first_V: NDArray[np.int64]
    kind_V: NDArray[np.int8]
    some_V: NDArray[np.float64]
    string_V: NDArray[np.float64]
    free_V: NDArray[np.float64]
    open_V: NDArray[np.float64]
    size_V: NDArray[np.float64]
    quotes: NDArray[np.int64]
    probes: tuple[int, ...]
    behind: tuple[int, ...]
    lasts: tuple[int, ...]
    bytes: tuple[int, ...]
    ids: dict[bytes, tuple[int, ...]]
    longest: int

    @staticmethod
    @lru_cache(maxsize=16)
    def of(pieces: tuple[bytes | None, ...]) -> Ways:
        ids, longest = spelled.by_bytes(pieces)
        first_V = np.array([p[0] if p else 256 for p in pieces])
        kind_V = np.array([_kind(p or b"") for p in pieces], np.int8)
        size_V = np.array([min(len(p or b""), 15) for p in pieces]) / 100
        string_V = kind_V.astype(np.float64)
        opening_V = PLAIN + 0.5 + (size_V > 0.01)                              # a quotation mark begins a string there
        some_V = np.where(kind_V == STRING, opening_V, string_V)
        free_V = np.where((kind_V == CLOSE) | (kind_V == COMMA), PLAIN, string_V)     # these end nothing there
        open_V = np.where(kind_V == STRING, opening_V, free_V)
        found = [tuple(ids[p][0] for p in texts if p in ids) for texts in (PROBES, BEHIND, LASTS, PRINTABLE)]
        quotes = np.flatnonzero(kind_V == STRING)
        return Ways(pieces, first_V, kind_V, some_V, string_V, free_V, open_V, size_V, quotes, *found, ids, longest)

    def out(self, language: Language[Any], state: Any, ends: Sequence[int], most: int,
            known: dict[bytes, bytes] | None = None) -> tuple[int, ...] | None:
        """Tokens that lead from a state to a legal end, the last of them ends it; None where at most so many are not found.
        known: by what is allowed inside a text, what leads to where it may end; it is added to."""
        way, uses, known = list[int](), Counter[int](), {} if known is None else known
        while len(way) < most:
            only = language.forced(state)
            if not only:
                mask_V = language.mask(state)
                if ended := [x for x in ends if mask_V[x]]:
                    return (*way, ended[0])
                rank_V = self._ranks(language, state, mask_V)
                if rank_V is self.open_V or (rank_V is self.some_V and mask_V[list(self.probes)].any()):
                    only = self._through(language, state, mask_V, ends, known)
            if only:
                tokens, state = self._written(language, state, only)
                way += tokens
                if not tokens:
                    return None
                continue
            some = self._best(mask_V.numpy(), rank_V, uses, -1.0 if len(way) < FAST else 1.0)
            if not some:
                return None
            lasts = (x for x in some if any(language.allows(language.step(state, x), end) for end in ends))
            token = next(lasts, some[0])
            way.append(token)
            uses[int(self.first_V[token])] += self.kind_V[token] != STRING        # which lengthens nothing by itself
            state = language.step(state, token)
        return None

    def _written(self, language: Language[Any], state: Any, text: bytes) -> tuple[list[int], Any]:
        """A text in the longest tokens that are allowed, as far as it goes, and the state behind them."""
        tokens = list[int]()
        while text:
            spelled = (self.ids[text[:n]][0] for n in range(min(self.longest, len(text)), 0, -1) if text[:n] in self.ids)
            token = next((x for x in spelled if language.allows(state, x)), None)
            if token is None:
                break
            tokens.append(token)
            state, text = language.step(state, token), text[len(self.pieces[token] or b""):]
        return tokens, state

    def _ranks(self, language: Language[Any], state: Any, mask_V: Tensor) -> NDArray[np.float64]:
        """How tokens are ranked at a state."""
        free = len(self.probes) == len(PROBES) and mask_V[list(self.probes)].all()
        if self._ends_string(language, state, mask_V):
            return self.free_V if free else self.string_V
        return self.open_V if free else self.some_V

    def _ends_string(self, language: Language[Any], state: Any, mask_V: Tensor) -> bool:
        """Whether a quotation mark ends a string of JSON: no letter may follow, and what stands behind strings may."""
        quote = next((x for x in self.ids.get(b'"', ()) if mask_V[x]), None)
        if quote is None:
            return False
        after = language.step(state, quote)
        return any(language.allows(after, x) for x in self.behind) and not any(language.allows(after, x) for x in self.probes)

    def _through(self, language: Language[Any], state: Any, mask_V: Tensor, ends: Sequence[int],
                 known: dict[bytes, bytes]) -> bytes:
        """A shortest text behind which the string may end that may not yet (it needs so many characters, or a pattern in it);
        none where it is not found soon. Two states that allow the same are taken for one."""
        first = _digest(mask_V)
        if first not in known:
            known[first] = self._shortest(language, state, first, ends)
        return known[first]

    def _shortest(self, language: Language[Any], state: Any, first: bytes, ends: Sequence[int]) -> bytes:
        seen, queue = {first}, deque([(state, b"")])
        while queue and len(seen) <= STATES:
            here, text = queue.popleft()
            mask_V = language.mask(here)
            for token in self.bytes:
                if not mask_V[token]:
                    continue
                after, longer = language.step(here, token), text + (self.pieces[token] or b"")
                after_V = language.mask(after)
                if any(after_V[x] for x in ends) or self._ends_string(language, after, after_V):
                    return longer
                if (digest := _digest(after_V)) not in seen:
                    seen.add(digest)
                    queue.append((after, longer))
        return b""

    def _best(self, mask_V: NDArray[np.bool_], rank_V: NDArray[np.float64], uses: Counter[int], longer: float) -> list[int]:
        """Of the allowed tokens those that most likely lead out, best first: one of each kind and what often ends texts, or all
        where they are few. longer: what a token's length counts for."""
        ends = rank_V is self.free_V or rank_V is self.string_V       # a string: then it does end
        some = self.quotes[mask_V[self.quotes]] if ends else np.flatnonzero(mask_V)
        some = some[self.first_V[some] < 256]     # what writes nothing leads nowhere
        often = np.zeros(256)
        for byte, n in uses.items():
            often[byte] = n // OFTEN * 100 + n / 10
        ended = rank_V[some] <= COMMA
        rank = rank_V[some] + longer * self.size_V[some] + np.where(ended, 0.0, often[self.first_V[some]])
        if len(some) <= FEW:
            return [int(x) for x in some[np.argsort(rank, kind="stable")]]
        alike = [np.flatnonzero(self.kind_V[some] == kind) for kind in range(SPACE + 1)]
        first = sorted((float(rank[of].min()), int(of[rank[of].argmin()])) for of in alike if len(of))
        return [*(int(some[i]) for _, i in first), *(x for x in self.lasts if mask_V[x])]


def _kind(piece: bytes) -> int:
    """Of CLOSE to SPACE."""
    if not piece or any(byte in SPACES for byte in piece):
        return SPACE
    if all(byte in CLOSERS for byte in piece):
        return CLOSE
    if piece[0] == QUOTE and all(byte in CLOSERS for byte in piece[1:]):
        return STRING
    if piece in (b",", b":"):
        return COMMA
    if piece.isalnum():
        return WORD
    return ODD if any(byte >= 128 or byte in UNUSUAL for byte in piece) else PLAIN


def _digest(mask_V: Tensor) -> bytes:
    return blake2b(mask_V.numpy().tobytes(), digest_size=16).digest()
