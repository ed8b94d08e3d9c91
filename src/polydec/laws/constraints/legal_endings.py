"""Ways out: tokens that lead from where a text stands to a legal end of it."""

from __future__ import annotations

import string
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polydec.laws.constraints import pieces as spelled
from polydec.laws.constraints.protocols import TokenLanguage

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
"""So many tokens of a way out are as long as can be, to get on; those behind them as short as can
be, to try every byte.
"""
FEW = 12
"""Of so many allowed tokens each is tried whether it is the last one, else one of each kind."""
PRINTABLE = tuple(x.encode() for x in string.ascii_letters + string.digits + string.punctuation)
OFTEN = 8
"""A first byte that was taken so often is avoided, if it ended nothing: a way out does not repeat
itself without end.
"""
STATES = 24
"""Of so many states that differ in what they allow the followers are looked at, byte by byte, for
the end of a string.
"""
CLOSE, STRING, COMMA, WORD, PLAIN, ODD, SPACE = range(7)
"""Kinds of tokens: closing brackets; the end of a string, with such behind it; a comma or a colon;
letters and digits; other plain text; beyond ASCII, or with what is UNUSUAL; white space anywhere.
"""


@dataclass(frozen=True, eq=False)
class LegalEndings:
    """Chooses the tokens of ways out, for one vocabulary.

    Attributes:
        pieces: What each token writes; None: nothing.
    """

    pieces: tuple[bytes | None, ...]

    @staticmethod
    @lru_cache(maxsize=16)
    def of_pieces(pieces: tuple[bytes | None, ...]) -> LegalEndings:
        return LegalEndings(pieces)

    @cached_property
    def spelled(self) -> tuple[dict[bytes, tuple[int, ...]], int]:
        """By what they write the tokens, and the length of the longest."""
        return spelled.by_bytes(self.pieces)

    def of_texts(self, texts: Sequence[bytes]) -> tuple[int, ...]:
        """Tokens that write these texts, as far as there are such."""
        ids, _ = self.spelled
        return tuple(ids[text][0] for text in texts if text in ids)

    @cached_property
    def probes(self) -> tuple[int, ...]:
        return self.of_texts(PROBES)

    @cached_property
    def behind(self) -> tuple[int, ...]:
        return self.of_texts(BEHIND)

    @cached_property
    def lasts(self) -> tuple[int, ...]:
        return self.of_texts(LASTS)

    @cached_property
    def single(self) -> tuple[int, ...]:
        """Those of one printable character."""
        return self.of_texts(PRINTABLE)

    @cached_property
    def first_V(self) -> NDArray[np.int64]:
        """The first byte of each token, 256: it writes nothing."""
        return np.array([p[0] if p else 256 for p in self.pieces])

    @cached_property
    def size_V(self) -> NDArray[np.float64]:
        """The length of each, in hundredths."""
        return np.array([min(len(p or b""), 15) for p in self.pieces]) / 100

    @cached_property
    def kind_V(self) -> NDArray[np.int8]:
        return np.array([_kind(p or b"") for p in self.pieces], np.int8)

    @cached_property
    def quotes(self) -> NDArray[np.int64]:
        """Tokens that may end a string."""
        return np.flatnonzero(self.kind_V == STRING)

    @cached_property
    def ranks(self) -> dict[bool, dict[bool, NDArray[np.float64]]]:
        """How tokens are ranked, smaller is sooner: by whether any text may follow (as inside a
        string), and by whether a quotation mark ends one there.
        """
        kind_V = self.kind_V.astype(np.float64)
        # Inside a free text closing brackets and commas are plain characters.
        free_V = np.where(
            (kind_V == CLOSE) | (kind_V == COMMA), PLAIN, kind_V
        )  # these end nothing there
        opening_V = (
            PLAIN + 0.5 + (self.size_V > 0.01)
        )  # a quotation mark begins a string, if anything
        return {
            free: {True: rank_V, False: np.where(kind_V == STRING, opening_V, rank_V)}
            for free, rank_V in ((True, free_V), (False, kind_V))
        }

    def way_out(
        self,
        language: TokenLanguage[Any],
        state: Any,
        ends: Sequence[int],
        most: int,
        known: dict[bytes, bytes] | None = None,
    ) -> tuple[int, ...] | None:
        """Look for tokens that lead from a state to a legal end.

        Args:
            language: The language.
            state: Its state behind the text so far.
            ends: Token ids that end an answer.
            most: Most tokens of the way, the end included.
            known: What leads to where a text may end, by what is allowed inside it; it is added to.
                None: nothing is known.

        Returns:
            Token ids, the last of them an end; None where no way of at most so many is found.
        """
        way = list[int]()
        uses = Counter[int]()
        known = {} if known is None else known
        # Some languages know what ends their texts soonest.
        next_bytes = getattr(language, "closing_bytes", language.forced_bytes)
        while len(way) < most:
            # Bytes without a choice are written in the longest tokens.
            if only := next_bytes(state):
                tokens, state = self._written(language, state, only)
            else:
                mask_V = language.token_mask(state)
                # The text may end here: the way is complete.
                if ended := [x for x in ends if mask_V[x]]:
                    return (*way, ended[0])
                tokens, state = self._chosen(
                    language, state, mask_V, ends, uses, known, len(way) < FAST
                )
            if not tokens:
                return None
            way += tokens
        return None

    def _chosen(
        self,
        language: TokenLanguage[Any],
        state: Any,
        mask_V: Tensor,
        ends: Sequence[int],
        uses: Counter[int],
        known: dict[bytes, bytes],
        fast: bool,
    ) -> tuple[list[int], Any]:
        """Where more than one text may follow: the next tokens, none where none leads on, and the
        state behind them.
        """
        # Letters may follow and nothing ends the string: a text may be needed first (a length, a
        # pattern).
        letter = mask_V[list(self.probes)]
        ending = self._ends_string(language, state, mask_V)
        if (
            not ending
            and letter.any()
            and (text := self._through(language, state, mask_V, ends, known))
        ):
            return self._written(language, state, text)
        # Inside a string only its end leads out; elsewhere closing brackets come first.
        rank_V = self.ranks[len(letter) == len(PROBES) and bool(letter.all())][ending]
        allowed_V = mask_V.numpy()
        candidates = self._best(
            self.quotes[allowed_V[self.quotes]] if ending else np.flatnonzero(allowed_V),
            rank_V,
            uses,
            -1.0 if fast else 1.0,
        )
        if not candidates:
            return [], state
        # A token behind which the text may end is the best of all.
        lasts = (
            x
            for x in (*candidates, *(x for x in self.lasts if mask_V[x]))
            if any(language.allows_token(language.next_state(state, x), end) for end in ends)
        )
        token = next(lasts, candidates[0])
        # A first byte that is used again and again loses rank, so that the way does not run in a
        # circle.
        uses[int(self.first_V[token])] += (
            self.kind_V[token] != STRING
        )  # which lengthens nothing by itself
        return [token], language.next_state(state, token)

    def _written(
        self, language: TokenLanguage[Any], state: Any, text: bytes
    ) -> tuple[list[int], Any]:
        """A text in the longest tokens that are allowed, as far as it goes, and the state behind
        them.
        """
        tokens, (ids, longest) = list[int](), self.spelled
        while text:
            # The longest beginning of the text that is an allowed token.
            beginnings = (text[:n] for n in range(min(longest, len(text)), 0, -1))
            token = next(
                (
                    ids[t][0]
                    for t in beginnings
                    if t in ids and language.allows_token(state, ids[t][0])
                ),
                None,
            )
            if token is None:
                break
            tokens.append(token)
            state = language.next_state(state, token)
            text = text[len(self.pieces[token] or b"") :]
        return tokens, state

    def _ends_string(self, language: TokenLanguage[Any], state: Any, mask_V: Tensor) -> bool:
        """Whether a quotation mark ends a string of JSON: no letter may follow, and what stands
        behind strings may.
        """
        quote = next((x for x in self.of_texts((b'"',)) if mask_V[x]), None)
        if quote is None:
            return False
        after = language.next_state(state, quote)
        return any(language.allows_token(after, x) for x in self.behind) and not any(
            language.allows_token(after, x) for x in self.probes
        )

    def _through(
        self,
        language: TokenLanguage[Any],
        state: Any,
        mask_V: Tensor,
        ends: Sequence[int],
        known: dict[bytes, bytes],
    ) -> bytes:
        """A shortest text behind which the string may end that may not yet (it needs so many
        characters, or a pattern in it); none where it is not found soon. Two states that allow the
        same are taken for one.
        """
        first = _digest(mask_V)
        if first not in known:
            known[first] = self._shortest(language, state, first, ends)
        return known[first]

    def _shortest(
        self, language: TokenLanguage[Any], state: Any, first: bytes, ends: Sequence[int]
    ) -> bytes:
        # Breadth-first over single characters; states with equal masks count as one.
        seen = {first}
        queue = deque([(state, b"")])
        # A search in breadth finds the shortest text; states that allow the same tokens count as
        # one.
        while queue and len(seen) <= STATES:
            here, text = queue.popleft()
            # Tokens of one sign only: what is found first is then the shortest text.
            mask_V = language.token_mask(here)
            for token in self.single:
                if not mask_V[token]:
                    continue
                after = language.next_state(here, token)
                longer = text + (self.pieces[token] or b"")
                after_V = language.token_mask(after)
                if any(after_V[x] for x in ends) or self._ends_string(language, after, after_V):
                    return longer
                # A mask tells states apart cheaply, though two states may have equal ones by
                # chance.
                if (digest := _digest(after_V)) not in seen:
                    seen.add(digest)
                    queue.append((after, longer))
        return b""

    def _best(
        self,
        tokens: NDArray[np.int64],
        rank_V: NDArray[np.float64],
        uses: Counter[int],
        longer: float,
    ) -> list[int]:
        """Of the allowed tokens those that most likely lead out, best first: one of each kind, or
        all where they are few. uses: of first bytes, so far; longer: what a token's length counts
        for.
        """
        tokens = tokens[self.first_V[tokens] < 256]  # what writes nothing leads nowhere
        often = np.zeros(256)
        for byte, n in uses.items():
            # After OFTEN uses a byte falls behind all that were used less often.
            often[byte] = n // OFTEN * 100 + n / 10
        ended = rank_V[tokens] <= COMMA
        rank = (
            rank_V[tokens]
            + longer * self.size_V[tokens]
            + np.where(ended, 0.0, often[self.first_V[tokens]])
        )
        if len(tokens) <= FEW:
            return [int(x) for x in tokens[np.argsort(rank, kind="stable")]]
        # One candidate of each kind, the best of it, is enough to choose from.
        alike = [np.flatnonzero(self.kind_V[tokens] == kind) for kind in range(SPACE + 1)]
        first = sorted(
            (float(rank[of].min()), int(of[rank[of].argmin()])) for of in alike if len(of)
        )
        return [int(tokens[i]) for _, i in first]


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
    if any(byte >= 128 or byte in UNUSUAL for byte in piece):
        return ODD
    return PLAIN


def _digest(mask_V: Tensor) -> bytes:
    return blake2b(mask_V.numpy().tobytes(), digest_size=16).digest()
