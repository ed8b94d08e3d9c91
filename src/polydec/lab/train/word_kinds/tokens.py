"""Byte-level BPE tokens, as most language models read: the control of the other kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.tokens import train_tokenizer
from polydec.lab.train.word_kinds import plain_bytes
from polydec.lab.train.word_kinds.protocols import WordModelKind, as_it_is


def build_bpe_tokenizer(spec: WordsSpec, texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE tokenizer, learned from the texts that are trained on.

    Args:
        spec: Options; `vocab` is the number of tokens.
        texts: The texts.

    Returns:
        The tokenizer.
    """
    return train_tokenizer(texts, spec.vocab)


def no_word_ends(tokens: Tokenizer) -> frozenset[int]:
    """No ids: a token may end a word or not, so words are not counted."""
    return frozenset()


def token_count_figures(
    network: TrainableLlama, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """How many tokens the texts have.

    Args:
        network: Not used.
        texts: Token ids of held-out texts, BEGIN first.
        length: Not used.

    Returns:
        `tokens`: tokens without BEGIN.
    """
    return {"tokens": sum(len(ids) - 1 for ids in texts)}


KIND = WordModelKind(
    plain_bytes.build_byte_network,
    as_it_is,
    plain_bytes.save_byte_network,
    token_count_figures,
    build_bpe_tokenizer,
    no_word_ends,
)
