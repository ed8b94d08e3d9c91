"""A span of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import pieces

Places = NDArray[np.int32]

LONGEST = 1_000_000
"""Characters of a text."""


@dataclass(frozen=True)
class SpanOf:
    """The answer is a span of `text`: some of its tokens, at least one, as they stand there one
    after another.

    Spans may begin and end inside words, and not inside characters. A span's first token may also
    be written without the space in front of it, where there is such a token: an answer begins a
    text of its own, a span stands inside one.

    Source: Castel et al., "How optimal is greedy decoding for extractive question answering?"
    (2021).
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not 1 <= len(self.text) <= LONGEST:  # pyright: ignore
            raise RequestError(
                f"span is of {short_repr(self.text)}: it must be a text of 1 to {LONGEST} characters"
            )
        whole_text(self.text, "span_of")

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> SpanLanguage:
        """Make the language of the spans for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: No token of the vocabulary writes any of the text.
        """
        spelled = pieces.token_byte_pieces(vocab, ends)
        assert vocab.words is not None, "pieces.of has looked"
        spans = SpanLanguage.of_tokens(vocab.words.encode(self.text, special=False), spelled, ends)
        if not spans.token_mask(spans.start_state()).any():
            raise RequestError(
                f"span is of {short_repr(self.text)}: no token of this model writes any of it"
            )
        return spans


WHOLE: Places = np.array([-1], np.int32)
"""The state before the first token."""
PARTS = -1
"""In the place of a token: it stands in no span."""


@dataclass(frozen=True, eq=False)
class SpanLanguage:
    """The language of the spans of some tokens.

    A state is the places behind the last token written, wherever it may stand.

    Attributes:
        tokens_N: Token ids of the text, shape ``[N]``; PARTS stands between spans.
        bare: For a token with a leading space the token without it.
        size: Number of token ids (V).
        ends: Token ids that end an answer.
        within_N: Whether a place lies inside a character, where no span begins or ends, shape ``[N
            + 1]``.
    """

    tokens_N: Places
    bare: dict[int, int]
    size: int
    ends: frozenset[int]
    within_N: NDArray[np.bool_]
    finite = True

    @staticmethod
    def of_tokens(
        tokens: Sequence[int],
        spelled: Sequence[bytes | None] | None,
        ends: frozenset[int],
        size: int = 0,
    ) -> SpanLanguage:
        """Make the language of the spans of some tokens.

        Ends, and tokens that write nothing, stand in no span.

        Args:
            tokens: Token ids of the text.
            spelled: The bytes of every id. None: not known; then `size` ids are meant, and no span
                begins without its space.
            ends: Token ids that end an answer.
            size: Number of token ids; read where `spelled` is None. Default 0.

        Returns:
            The language.
        """
        tokens_N = np.array(tokens, np.int32)
        known = set(tokens)
        within_N = np.zeros(len(tokens_N) + 1, np.bool_)
        silent = known & ends
        bare = dict[int, int]()
        if spelled is not None:
            ids, _ = pieces.by_bytes(tuple(spelled))
            silent |= {x for x in known if spelled[x] is None}
            # A token that begins with a continuation byte of UTF-8 goes on with a character.
            within_N[:-1] = np.isin(tokens_N, [x for x in known if _continues(spelled[x])])
            for x in known:
                piece = spelled[x] or b""
                # A span may begin without the leading space, if there is a token for that.
                if piece[:1] == b" " and piece[1:] in ids:
                    bare[x] = ids[piece[1:]][0]
        tokens_N[np.isin(tokens_N, list(silent))] = PARTS
        return SpanLanguage(
            tokens_N, bare, size if spelled is None else len(spelled), ends, within_N
        )

    @cached_property
    def _first(self) -> list[int]:
        """The tokens with which a span may begin."""
        begin = set(np.unique(self.tokens_N[~self.within_N[:-1]]).tolist()) - {PARTS}
        return sorted(begin | {self.bare[x] for x in begin if x in self.bare})

    def allowed_followers(self, state: Places) -> list[int]:
        """The tokens that may be written behind a text, ends left out."""
        if state is WHOLE:
            return self._first
        tokens = np.unique(self.tokens_N[self._inside(state)])
        return tokens[tokens != PARTS].tolist()

    def start_state(self) -> Places:
        return WHOLE

    def next_state(self, state: Places, token: int) -> Places:
        """Advance the state by one token of the answer.

        Args:
            state: Places behind the last token written.
            token: Token id that follows.

        Returns:
            The places behind the longer span; none where it stands nowhere.
        """
        # The first token: all places where it stands, with or without its leading space.
        if state is WHOLE:
            written = [token, *(x for x, bare in self.bare.items() if bare == token)]
            there_N = np.isin(self.tokens_N, written) & ~self.within_N[:-1]
            return (np.flatnonzero(there_N) + 1).astype(np.int32)
        # Later tokens: the places that go on with it.
        inside = self._inside(state)
        return inside[self.tokens_N[inside] == token] + 1

    def allows_token(self, state: Places, token: int) -> bool:
        """Tell whether a token may follow, or end the answer.

        Args:
            state: Places behind the last token written.
            token: Token id.

        Returns:
            True where it may.
        """
        if token in self.ends:
            return self._complete(state)
        return len(self.next_state(state, token)) > 0

    def token_mask(self, state: Places) -> Tensor:
        out_V = torch.zeros(self.size, dtype=torch.bool)
        out_V[self.allowed_followers(state)] = True
        if self._complete(state):
            out_V[[x for x in self.ends if 0 <= x < self.size]] = True
        return out_V

    def _inside(self, state: Places) -> Places:
        """The places that have a token behind them."""
        return state[state < len(self.tokens_N)]

    def _complete(self, state: Places) -> bool:
        """Whether a span ends here."""
        # A span may end if one of its places does not lie inside a character.
        return state is not WHOLE and not bool(self.within_N[state].all())

    def forced_bytes(self, state: Places) -> bytes:
        return b""


def _continues(piece: bytes | None) -> bool:
    """Whether a token begins inside a character."""
    return bool(piece) and 0x80 <= piece[0] < 0xC0
