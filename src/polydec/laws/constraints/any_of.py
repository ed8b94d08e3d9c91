"""One of some texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

import torch
from torch import Tensor

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import pieces
from polydec.laws.constraints.expressions import Expression, ExpressionChoice, literal_text

MOST = 10_000
LONGEST = 200_000
"""Texts of a constraint, and characters of all of them together."""
KEPT = 64
"""Beginnings whose followers are remembered."""


@dataclass(frozen=True)
class AnyOf:
    """The answer is one of `texts`, spelled in whatever tokens.

    Every spelling is allowed, as by a grammar. A text's probability is that of all its spellings;
    the mask then takes away what is another text and nothing else. The tokenizer's own spelling
    also depends on what stands before the answer, which a constraint does not see.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.texts, str) or not 1 <= len(self.texts) <= MOST:
            raise RequestError(f"choice is {short_repr(self.texts)}: it must be 1 to {MOST} texts")
        for i, text in enumerate(self.texts):
            if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RequestError(
                    f"choice[{i}] is {short_repr(text)}: it must be a text of at least one character"
                )
            whole_text(text, f"choice[{i}]")
        if sum(map(len, self.texts)) > LONGEST:
            raise RequestError(
                f"choice has {sum(map(len, self.texts))} characters: all texts together may have {LONGEST}"
            )

    def regular_expression(self) -> Expression:
        """The texts as a regular expression."""
        return ExpressionChoice(tuple(map(literal_text, self.texts)))

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> ChoiceLanguage:
        """Make the language of these texts for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: No tokens of the vocabulary spell one of the texts, or its bytes are not
                known.
        """
        spelled = pieces.token_byte_pieces(vocab, ends)
        strings = [text.encode() for text in self.texts]
        ids, longest = pieces.by_bytes(spelled)
        rest = {string: _spelled(string, ids, longest) for string in strings}
        for i, string in enumerate(strings):
            spelling = rest[string]
            if spelling is not None and not spelling[0]:
                raise RequestError(
                    f"choice[{i}] is {short_repr(self.texts[i])}: no tokens of this model spell it"
                )
        order = tuple(sorted(rest))
        return ChoiceLanguage(order, tuple(rest[string] for string in order), spelled, ends)


@dataclass(frozen=True)
class ChoicePrefix:
    """A beginning that some texts share: the first `depth` bytes of the texts from `low` to before
    `high`, in order.

    Attributes:
        low: Index of the first text.
        high: Index behind the last text.
        depth: Bytes that are written.
    """

    low: int
    high: int
    depth: int


DEAD = ChoicePrefix(0, 0, 0)
"""Behind what is none of the texts, and behind the end of one: nothing is allowed."""


@dataclass(frozen=True, eq=False)
class ChoiceLanguage:
    """The language of an `AnyOf`.

    Texts that begin alike stand one after another, so a beginning is a range of them, and nothing
    is stored for a byte.

    Attributes:
        strings: The texts as bytes, in order, each once.
        rest: For each text, at every place, whether tokens spell what follows there; None:
            everywhere.
        pieces: The bytes of each token; None: it writes nothing.
        ends: Token ids that end an answer.
    """

    strings: tuple[bytes, ...]
    rest: tuple[bytearray | None, ...]
    pieces: tuple[bytes | None, ...]
    ends: frozenset[int]
    finite = True
    _known: dict[ChoicePrefix, tuple[int, ...]] = field(
        default_factory=dict[ChoicePrefix, tuple[int, ...]], init=False, repr=False
    )

    def start_state(self) -> ChoicePrefix:
        return ChoicePrefix(0, len(self.strings), 0)

    def next_state(self, state: ChoicePrefix, token: int) -> ChoicePrefix:
        """Advance the state by one token of the answer.

        Args:
            state: State behind the answer so far.
            token: Token id that follows.

        Returns:
            The state behind the longer answer; `DEAD` where no text begins so.
        """
        piece = self.pieces[token]
        if piece is None:
            return DEAD
        # A token is followed byte by byte; each byte narrows the range of texts.
        for byte in piece:
            state = self._narrowed(state, byte)
        if self._open(state):
            return state
        return DEAD

    def allows_token(self, state: ChoicePrefix, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: State behind the answer so far.
            token: Token id.

        Returns:
            True where it may.
        """
        if token in self.ends:
            return self._whole(state)
        return self.next_state(state, token) != DEAD

    def token_mask(self, state: ChoicePrefix) -> Tensor:
        out_V = torch.zeros(len(self.pieces), dtype=torch.bool)
        out_V[list(self.allowed_followers(state))] = True
        if self._whole(state):
            out_V[[x for x in self.ends if 0 <= x < len(out_V)]] = True
        return out_V

    def forced_bytes(self, state: ChoicePrefix) -> bytes:
        if state.low == state.high:
            return b""
        first = self.strings[state.low]
        last = self.strings[state.high - 1]
        if first is last:
            return first[state.depth :]
        # What the first and the last text of the range share, all texts between them share, too.
        pairs = zip(first[state.depth :], last[state.depth :], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return first[state.depth : state.depth + shared]

    def allowed_followers(self, state: ChoicePrefix) -> tuple[int, ...]:
        """The tokens that may be written behind a text. Ends are not among them."""
        if state not in self._known:
            # Answers go forward: old beginnings are not asked again.
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[state] = tuple(
                x for ids, there in self._walk(state) if self._open(there) for x in ids
            )
        return self._known[state]

    @cached_property
    def _tokens(self) -> tuple[dict[bytes, tuple[int, ...]], list[bytes]]:
        """The ids of each piece, and all pieces in order. Looked up once: it takes as long as all
        pieces to be found again.
        """
        return pieces.by_bytes(self.pieces)[0], pieces.sorted_pieces(self.pieces)

    def _walk(self, state: ChoicePrefix) -> Iterator[tuple[tuple[int, ...], ChoicePrefix]]:
        """The tokens that go on from a beginning, and where they lead; also to where nothing goes
        on. Short ones come first.
        """
        ids, order = self._tokens
        paths = deque([(b"", state)])
        # A breadth-first search over bytes that tokens begin with.
        while paths:
            path, at = paths.popleft()
            if path in ids:
                yield ids[path], at
            for byte, there in self._below(at):
                longer = path + byte
                # A longer path is followed only where some token begins with it.
                first = bisect_left(order, longer)
                if first < len(order) and order[first].startswith(longer):
                    paths.append((longer, there))

    def _below(self, state: ChoicePrefix) -> Iterator[tuple[bytes, ChoicePrefix]]:
        """The bytes that go on from a beginning, and where each leads."""
        # A text that ends here has no next byte; it is the first of its range.
        low = state.low + self._whole(state)
        while low < state.high:
            at = state.depth
            byte = self.strings[low][at : at + 1]
            there = self._narrowed(ChoicePrefix(low, state.high, at), byte[0])
            yield byte, there
            low = there.high

    def _narrowed(self, state: ChoicePrefix, byte: int) -> ChoicePrefix:
        """Behind one byte more."""
        at = state.depth
        wanted = bytes((byte,))
        if state.low == state.high:
            return DEAD
        # A single text: no search is needed.
        if state.high - state.low == 1:
            goes_on = self.strings[state.low].startswith(wanted, at)
            if goes_on:
                return ChoicePrefix(state.low, state.high, at + 1)
            return DEAD

        def is_there(string: bytes) -> bytes:
            return string[at : at + 1]

        # All texts of the range have the same bytes before `at`, so they are in order of the byte
        # there.
        low = bisect_left(self.strings, wanted, state.low, state.high, key=is_there)
        high = bisect_right(self.strings, wanted, low, state.high, key=is_there)
        if low < high:
            return ChoicePrefix(low, high, at + 1)
        return DEAD

    def _whole(self, state: ChoicePrefix) -> bool:
        """Whether a text ends here: it is the first of those that begin with it."""
        return state.low < state.high and len(self.strings[state.low]) == state.depth

    def _open(self, state: ChoicePrefix) -> bool:
        """Whether tokens spell the rest of a text from here."""
        rest = (self.rest[i] for i in range(state.low, state.high))
        return any(spelling is None or spelling[state.depth] for spelling in rest)


def _spelled(string: bytes, ids: Mapping[bytes, tuple[int, ...]], longest: int) -> bytearray | None:
    """At every place of a string whether tokens spell the rest of it; None: everywhere, as where
    each byte is a token. ids: the tokens by what they write; longest: bytes of one.
    """
    if all(bytes((byte,)) in ids for byte in set(string)):
        return None
    # From the end to the front: a place is spelled if some token leads from it to a spelled place.
    out = bytearray(len(string) + 1)
    out[-1] = 1
    for begin in range(len(string) - 1, -1, -1):
        last = out.find(1, begin + 1, begin + 1 + longest)
        if last < 0:  # no token is long enough, and none will be in front of here
            break
        while last >= 0 and string[begin:last] not in ids:
            last = out.find(1, last + 1, begin + 1 + longest)
        out[begin] = last >= 0
    return out
