"""The bytes that tokens stand for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from polydec.base.errors import RequestError

if TYPE_CHECKING:  # a worker that knows bytes and no tensors reads this file as well
    from polydec.core.types import TokenCodec, TokenVocabulary


def token_byte_pieces(vocab: TokenVocabulary, ends: frozenset[int]) -> tuple[bytes | None, ...]:
    """Look up the bytes of every token.

    Args:
        vocab: The vocabulary, with its tokenizer.
        ends: Token ids that end an answer, besides those of the vocabulary.

    Returns:
        For each id its bytes; None for those that write nothing, and for those that end a text.

    Raises:
        RequestError: Nothing is known of them.
    """
    if vocab.words is None or not any(vocab.words.pieces):
        raise RequestError(
            "constraint cannot be kept: what bytes the tokens of this model's tokenizer stand for is not known "
            "token by token, so leave it out"
        )
    return _of(vocab.words, vocab.size, ends | vocab.eos)


@lru_cache(maxsize=16)
def _of(words: TokenCodec, size: int, silent: frozenset[int]) -> tuple[bytes | None, ...]:
    known: Sequence[bytes | None] = words.pieces[:size]
    # Ids beyond the tokenizer, which pad the vocabulary, write nothing.
    return tuple((p or None) if i not in silent else None for i, p in enumerate(known)) + (
        None,
    ) * (size - len(known))


@lru_cache(maxsize=16)
def sorted_pieces(pieces: tuple[bytes | None, ...]) -> list[bytes]:
    """The pieces in order, so that it is soon told whether any begins in some way."""
    return sorted({piece for piece in pieces if piece is not None})


@lru_cache(maxsize=16)
def by_bytes(pieces: tuple[bytes | None, ...]) -> tuple[dict[bytes, tuple[int, ...]], int]:
    """The ids of each piece (several tokens may be spelled alike), and the length of the longest."""
    out = dict[bytes, tuple[int, ...]]()
    for i, piece in enumerate(pieces):
        if piece is not None:
            out[piece] = (*out.get(piece, ()), i)
    return out, max(map(len, out), default=0)
