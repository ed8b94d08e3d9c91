"""The tokens from which an answer can be composed with the words of some evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from polydec.base.errors import PolydecError
from polydec.core.types import TokenCodec, TokenVocabulary

GRAMMAR = (
    "a",
    "an",
    "the",
    "and",
    "or",
    "but",
    "not",
    "no",
    "yes",
    "of",
    "in",
    "on",
    "at",
    "to",
    "from",
    "by",
    "for",
    "with",
    "as",
    "is",
    "are",
    "was",
    "were",
    "be",
    "been",
    "it",
    "its",
    "he",
    "she",
    "they",
    "his",
    "her",
    "their",
    "this",
    "that",
    "who",
    "which",
    "both",
    "neither",
    "either",
    "same",
    "than",
    "more",
    "less",
    "before",
    "after",
    "between",
)
"""Words that any answer may use."""


def word_bank(vocab: TokenVocabulary, ends: frozenset[int], evidence: Sequence[int]) -> Tensor:
    """Return which tokens an answer from some evidence may use.

    These are the tokens that stand in the evidence, spell one of its words or of GRAMMAR (bare,
    after a space, in small letters, with a capital), have no letter in them (figures, marks,
    spaces), or end an answer. Without a tokenizer: those of the evidence and ends. It is a bank of
    tokens: words of several tokens may be composed anew.

    Args:
        vocab: Vocabulary of the answer.
        ends: Token ids that end an answer.
        evidence: Token ids of the evidence.

    Returns:
        True for the tokens that may be used, shape ``[V]``.
    """
    # The evidence's own tokens first: they spell it whatever the tokenizer does with single words.
    out_V = torch.zeros(vocab.size, dtype=torch.bool)
    out_V[[x for x in (*evidence, *ends) if 0 <= x < vocab.size]] = True
    if vocab.words is not None:
        # Words of the evidence in other forms, which the evidence itself may not show.
        words = set(re.findall(r"\w+", vocab.words.decode(evidence)))
        out_V[list({x for word in words for x in _spelled(vocab.words, word)})] = True
        out_V[list(_common(vocab.words, vocab.size))] = True
    return out_V


@lru_cache(maxsize=1 << 14)
def _spelled(words: TokenCodec, word: str) -> frozenset[int]:
    """The tokens of a word, in all its forms that the tokenizer can spell."""
    out = set[int]()
    # Case and the space before a word change its tokens.
    for form in {word, word.lower(), word.capitalize()}:
        for text in (form, " " + form):
            try:
                out |= set(words.encode(text, special=False))
            except PolydecError:
                continue
    return frozenset(out)


@lru_cache(maxsize=16)
def _common(words: TokenCodec, size: int) -> frozenset[int]:
    """What any answer may use."""
    # Tokens without a letter; broken UTF-8 may be part of one, so it does not count as such.
    plain = {
        i
        for i, piece in enumerate(words.pieces[:size])
        if piece is not None
        and not any(c.isalpha() or c == "\ufffd" for c in piece.decode("utf-8", "replace"))
    }
    return frozenset(plain.union(*(_spelled(words, word) for word in GRAMMAR)))
