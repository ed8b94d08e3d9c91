"""Answers that come to a legal end before their tokens run out."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydec.constraints import pieces as spelled
from polydec.constraints.protocols import Language

ROOM = 24
"""Tokens that are left beside a way out when it is taken, or a quarter of all that there may be: one token may lengthen it (by
a property that an object needs, say), and such tokens are not looked for one by one."""
AGAIN = 8
"""Where no way out was short enough, it is looked for again after so many tokens."""
LONGEST = 600
"""Tokens of a way out at most."""


class Place:
    """Behind some tokens. inner: the state of the language itself; used: how many tokens there are; look: at how many a way out
    is looked for; out: the way out that is being taken, None: none is. It is looked for when somebody first asks."""
    __slots__ = ("inner", "look", "out", "used")

    def __init__(self, inner: Any, used: int, look: int, out: tuple[int, ...] | None = None) -> None:
        self.inner, self.used, self.look, self.out = inner, used, look, out


DEAD = Place(None, 0, 0, ())


@dataclass(frozen=True, eq=False)
class InTime:
    """The texts of `inner` that end within `most` tokens, the end included, as far as a way out is found: some tokens that lead
    from a text to a legal end. While there is time, everything is allowed that `inner` allows; when there is hardly more
    left than the way out takes, its tokens are the only ones.

    It is looked for ever more often the nearer the end is, and by a rule of thumb (`Ways`): it need not be the shortest, and
    where none is found that fits, nothing is forced, and the answer may be cut as it would have been.
    ways: of the vocabulary; ends: the ids that end an answer, as `inner` has them.

    Reduces to: `inner` where there is time enough.
    Source: own; the mask that it bends, as in Willard and Louf, "Efficient guided generation for large language models", 2023.
    """
    inner: Language[Any]
    most: int
    ways: Ways
    ends: tuple[int, ...]

    @property
    def finite(self) -> bool:
        return self.inner.finite

    def start(self) -> Place:
        return Place(self.inner.start(), 0, 0)

    def step(self, state: Place, token: int) -> Place:
        self._look(state)
        if state.out is None:
            return Place(self.inner.step(state.inner, token), state.used + 1, state.look)
        if state.out[:1] != (token,):
            return DEAD
        return Place(self.inner.step(state.inner, token), state.used + 1, state.look, state.out[1:])

    def allows(self, state: Place, token: int) -> bool:
        self._look(state)
        return self.inner.allows(state.inner, token) if state.out is None else state.out[:1] == (token,)

    def mask(self, state: Place) -> Tensor:
        self._look(state)
        if state.out is None:
            return self.inner.mask(state.inner)
        mask_V = torch.zeros(len(self.ways.pieces), dtype=torch.bool)
        mask_V[list(state.out[:1])] = True
        return mask_V

    def forced(self, state: Place) -> bytes:
        self._look(state)
        if state.out is None:
            return self.inner.forced(state.inner)
        return b"".join(self.ways.pieces[x] or b"" for x in state.out)

    def steered(self, tokens: Sequence[int]) -> int:
        """How many of these tokens of an answer were the only ones allowed, so that it ended in time."""
        state, count = self.start(), 0
        for token in tokens:
            self._look(state)
            count += state.out is not None
            state = self.step(state, token)
        return count

    def way(self, inner: Any, left: int) -> tuple[int, ...] | None:
        """A way out of at most so many tokens."""
        try:
            return self.ways.out(self.inner, inner, self.ends, min(left, LONGEST))
        except ValueError:                        # a grammar may become too complex there, where the answer need not go
            return None

    def _look(self, state: Place) -> None:
        """Find out whether it is time to go."""
        if state.out is not None or state.used < state.look:
            return
        left, room = self.most - state.used, min(ROOM, self.most // 4)
        way = self.way(state.inner, left)
        if way is None:
            state.look = state.used + AGAIN
        elif left - len(way) <= room:
            state.out = way
        else:                                     # half of what may still be written freely, so that it may grow as fast
            state.look = state.used + max(1, (left - len(way) - room) // 2)


def in_time(inner: Language[Any], most: int, pieces: tuple[bytes | None, ...], ends: Sequence[int]) -> InTime:
    """The language, ended within so many tokens. Raises ValueError where no way out of its very beginning is so short."""
    found = InTime(inner, most, Ways.of(pieces), tuple(ends))
    if found.way(inner.start(), most) is None:
        raise ValueError(f"max_tokens is {most}: no text of the constraint was found that ends within so many tokens, so give "
                         "more, or leave finish out")
    return found


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
OFTEN = 8
"""A first byte that was taken so often is avoided, if it ended nothing: a way out does not repeat itself without end."""
CLOSE, STRING, COMMA, WORD, PLAIN, ODD, SPACE = range(7)
"""Kinds of tokens: closing brackets; the end of a string, with such behind it; a comma or a colon; letters and digits; other
plain text; beyond ASCII, or with what is UNUSUAL; white space anywhere."""


@dataclass(frozen=True, eq=False)
class Ways:
    """Chooses the tokens of ways out, for one vocabulary. Of each token its bytes, the first one, its kind, how it is ranked
    where only some texts may follow, where a string may end as well, and where any text may follow (inside a string, say):
    smaller is sooner; and its length, in hundredths."""
    pieces: tuple[bytes | None, ...]
    first_V: NDArray[np.int64]
    kind_V: NDArray[np.int64]
    some_V: NDArray[np.float64]
    string_V: NDArray[np.float64]
    free_V: NDArray[np.float64]
    size_V: NDArray[np.float64]
    probes: tuple[int, ...]
    behind: tuple[int, ...]
    lasts: tuple[int, ...]
    ids: dict[bytes, tuple[int, ...]]
    longest: int

    @staticmethod
    @lru_cache(maxsize=16)
    def of(pieces: tuple[bytes | None, ...]) -> Ways:
        ids, longest = spelled.by_bytes(pieces)
        first_V = np.array([p[0] if p else 256 for p in pieces])
        kind_V = np.array([_kind(p or b"") for p in pieces])
        size_V = np.array([min(len(p or b""), 15) for p in pieces]) / 100
        string_V = kind_V.astype(np.float64)
        some_V = np.where(kind_V == STRING, PLAIN + 0.5 + (size_V > 0.01), string_V)  # a quotation mark begins a string there
        free_V = np.where((kind_V == CLOSE) | (kind_V == COMMA), PLAIN, string_V)     # these end nothing there
        found = [tuple(ids[p][0] for p in texts if p in ids) for texts in (PROBES, BEHIND, LASTS)]
        return Ways(pieces, first_V, kind_V, some_V, string_V, free_V, size_V, *found, ids, longest)

    def out(self, language: Language[Any], state: Any, ends: Sequence[int], most: int) -> tuple[int, ...] | None:
        """Tokens that lead from a state to a legal end, the last of them ends it; None where at most so many are not found."""
        way, uses = list[int](), Counter[int]()
        while len(way) < most:
            known = language.forced(state)
            if not known:
                mask_V = language.mask(state)
                if ended := [x for x in ends if mask_V[x]]:
                    return (*way, ended[0])
                some = self._best(mask_V.numpy(), self._ranks(language, state, mask_V), uses, -1.0 if len(way) < FAST else 1.0)
                if not some:
                    return None
                lasts = (x for x in some if any(language.allows(language.step(state, x), end) for end in ends))
                token, known = next(lasts, some[0]), b""
            else:
                token = self._spelling(known)
                if token is None or not language.allows(state, token):
                    return None
            way.append(token)
            uses[int(self.first_V[token])] += not known and self.kind_V[token] > COMMA
            state = language.step(state, token)
        return None

    def _spelling(self, text: bytes) -> int | None:
        """The longest token that begins a text."""
        return next((self.ids[text[:n]][0] for n in range(min(self.longest, len(text)), 0, -1) if text[:n] in self.ids), None)

    def _ranks(self, language: Language[Any], state: Any, mask_V: Tensor) -> NDArray[np.float64]:
        """How tokens are ranked at a state."""
        if len(self.probes) == len(PROBES) and mask_V[list(self.probes)].all():
            return self.free_V
        quote = next((x for x in self.ids.get(b'"', ()) if mask_V[x]), None)
        if quote is None:
            return self.some_V
        after = language.step(state, quote)       # it ends a string where no letter follows, and what stands behind strings does
        ends = any(language.allows(after, x) for x in self.behind) and not any(language.allows(after, x) for x in self.probes)
        return self.string_V if ends else self.some_V

    def _best(self, mask_V: NDArray[np.bool_], rank_V: NDArray[np.float64], uses: Counter[int], longer: float) -> list[int]:
        """Of the allowed tokens those that most likely lead out, best first: one of each kind and what often ends texts, or all
        where they are few. longer: what a token's length counts for."""
        some = np.flatnonzero(mask_V)
        some = some[self.first_V[some] < 256]     # what writes nothing leads nowhere
        often = np.zeros(256)
        for byte, n in uses.items():
            often[byte] = n // OFTEN * 100 + n / 10
        ended = self.kind_V[some] <= COMMA
        rank = rank_V[some] + longer * self.size_V[some] + np.where(ended, 0.0, often[self.first_V[some]])
        order = np.argsort(rank, kind="stable")
        if len(order) <= FEW:
            return [int(x) for x in some[order]]
        first = np.sort(np.unique(self.kind_V[some[order]], return_index=True)[1])
        return [*map(int, some[order[first]]), *(x for x in self.lasts if mask_V[x])]


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
