"""How the tokens of a vocabulary spell bytes: which begin with some bytes, and which spelling is the tokenizer's own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from polydec.base.errors import PolydecError
from polydec.core.types import TokenCodec

RUNS = 1 << 14
"""Most runs that a spelling remembers; what it forgets it finds again."""

PAIRS = 1 << 16
"""Most pairs of tokens of which it remembers whether the tokenizer writes them so."""


@dataclass(frozen=True, eq=False)
class SpellingRun:
    """How the tokens of a run go on, which stand in a row and begin alike.

    Attributes:
        ends: For each byte that may come next, three places in the spelling's order: where the
            tokens begin that go on with it, where those end that it completes, and where all of
            them end.
    """

    ends: Mapping[int, tuple[int, int, int]]

    @cached_property
    def next_R(self) -> Tensor:
        """The next byte of each token of the run."""
        # The run is ordered by the next byte, so each byte stands as often as it has tokens.
        counts = torch.tensor([hi - lo for lo, _, hi in self.ends.values()])
        return torch.tensor(list(self.ends)).repeat_interleave(counts)


class VocabularySpelling:
    """Tokens in the order of their bytes: those which begin alike stand in one run [lo, hi) of that
    order.

    Args:
        words: The tokenizer.
        size: How many token ids the vocabulary has.
    """

    def __init__(self, words: TokenCodec, size: int) -> None:
        # In the order of their bytes; tokens that write nothing are left out.
        known = sorted((piece, i) for i, piece in enumerate(words.pieces[:size]) if piece)
        self.bytes = [piece for piece, _ in known]
        self.id = [i for _, i in known]
        self.words = words
        # The caches belong to this spelling, and are freed with it.
        self.run = lru_cache(RUNS)(self._run)
        self.usual = lru_cache(PAIRS)(self._usual)

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def order(self) -> Tensor:
        """The ids, in order."""
        return torch.tensor(self.id, dtype=torch.long)

    @cached_property
    def known(self) -> frozenset[int]:
        """The bytes that some token holds."""
        return frozenset(b"".join(self.bytes))

    def token_of_piece(self, piece: bytes) -> int | None:
        """The first token of just these bytes; None: there is none."""
        at = bisect_left(self.bytes, piece)
        if at < len(self.id) and self.bytes[at] == piece:
            return self.id[at]
        return None

    def _run(self, lo: int, hi: int, depth: int) -> SpellingRun:
        """Of the tokens in [lo, hi), which have their first `depth` bytes in common and more
        behind these.
        """
        ends = dict[int, tuple[int, int, int]]()
        at = lo
        while at < hi:
            begun = self.bytes[at][: depth + 1]
            # Tokens that end with this byte sort before those that go on behind it.
            whole = bisect_right(self.bytes, begun, at, hi)
            last = begun[-1]
            # No byte is larger than 255: the last group reaches to the end of the run.
            if last == 255:
                stop = hi
            else:
                stop = bisect_left(self.bytes, begun[:-1] + bytes([last + 1]), whole, hi)
            ends[last] = at, whole, stop
            at = stop
        return SpellingRun(ends)

    def _usual(self, a: int, b: int) -> bool:
        """Whether the tokenizer spells the bytes of these two tokens with these two. A token
        without bytes stands between two texts: then the second token alone is looked at.
        """
        first = self.words.pieces[a]
        second = self.words.pieces[b]
        if second is None:
            return True
        # A token behind one without bytes begins a text of its own.
        tokens = (b,) if first is None else (a, b)
        try:
            return self._writes_so(tokens, ((first or b"") + second).decode())
        except UnicodeDecodeError:  # half a character
            return False

    def _writes_so(self, tokens: tuple[int, ...], text: str) -> bool:
        """Whether the tokenizer spells a text with these tokens."""
        try:
            if self.words.encode(text, special=False) == tokens:
                return True
            before = self.words.encode("\n", special=False)  # some put a space before every text
            return self.words.encode("\n" + text, special=False) == (*before, *tokens)
        except PolydecError:  # nothing that it can spell
            return False

    def is_canonical(self, tokens: Sequence[int]) -> bool:
        """Return whether the tokenizer spells the bytes of these tokens with these tokens.

        A token without bytes stands between two texts: what comes behind the last of them is looked
        at. Where the bytes end inside a character there is no text to ask about, and they count as
        canonical.

        Args:
            tokens: Token ids, at least one.
        """
        run = list[int]()
        text = b""
        for token in tokens:
            piece = self.words.pieces[token]
            if piece is None:
                run.clear()
                text = b""
            else:
                run.append(token)
                text += piece
        try:
            return self._writes_so(tuple(run), text.decode())
        except UnicodeDecodeError:
            return True


@lru_cache(maxsize=8)
def vocabulary_spelling(words: TokenCodec, size: int) -> VocabularySpelling:
    """Look up the spelling of a vocabulary; it is made once.

    Args:
        words: The tokenizer.
        size: How many token ids the vocabulary has.

    Returns:
        The spelling of the first `size` tokens.
    """
    return VocabularySpelling(words, size)
