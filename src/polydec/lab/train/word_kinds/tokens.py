"""Byte-level BPE tokens: what kinds over words and bytes are held against, as most language models read these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from polydec.lab.train.network import Llama
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.tokens import train_tokenizer
from polydec.lab.train.word_kinds import plain_bytes
from polydec.lab.train.word_kinds.protocols import Kind, as_it_is


def tokenizer(spec: WordsSpec, texts: Sequence[str]) -> Tokenizer:
    """Learned from the texts that are trained on."""
    return train_tokenizer(texts, spec.vocab)


def ends(tokens: Tokenizer) -> frozenset[int]:
    """A token may end a word or not: words are not counted."""
    return frozenset()


def beside(network: Llama, texts: Sequence[Sequence[int]], length: int) -> Mapping[str, Any]:
    return {"tokens": sum(len(ids) - 1 for ids in texts)}


KIND = Kind(plain_bytes.make, as_it_is, plain_bytes.save, beside, tokenizer, ends)
