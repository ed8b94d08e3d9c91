"""What a kind of model over bytes or words is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor, nn

from polydec.lab.train.data import END, SPECIAL
from polydec.lab.train.specs.words import CONTEXT, WordsSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer

PARTS = (" ", "\n")
"""What ends a word of bytes."""


def of_bytes(spec: WordsSpec, texts: Sequence[str]) -> Tokenizer:
    """A byte is a token."""
    return train_tokenizer([], 256 + len(SPECIAL))


def word_end_bytes(tokenizer: Tokenizer) -> frozenset[int]:
    """Bytes that part words, and the end of a text."""
    parts = tokenizer.encode("".join(PARTS), add_special_tokens=False).ids
    return frozenset((*parts, mark_id(tokenizer, END)))


@dataclass(frozen=True)
class WordModelKind:
    """make: a network that reads tokens [B, T], BEGIN first, and gives the logits of what follows each,
    [B, T, V]: whatever its units are, its law is one of texts. learn: the same logits as they are
    learned from at a step. save: writes a directory that `polydec.load` reads. beside: figures of its
    own, of held-out texts, each as far as a row is long. tokenizer: what writes texts as its tokens, from those that are
    trained on; ends: the tokens that end a word, none where words are not counted."""

    make: Callable[[WordsSpec, Tokenizer], nn.Module]
    learn: Callable[[Any, Tensor, int], Tensor]
    save: Callable[[Path, Any, Tokenizer, WordsSpec], None]
    beside: Callable[[Any, Sequence[Sequence[int]], int], Mapping[str, Any]]
    tokenizer: Callable[[WordsSpec, Sequence[str]], Tokenizer] = of_bytes
    ends: Callable[[Tokenizer], frozenset[int]] = word_end_bytes


def files_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a directory holds beside weights and config: no chat template, as these models learn running text."""
    files = tokenizer_files(tokenizer, CONTEXT)
    del files["tokenizer_config.json"]["chat_template"]
    return files


def as_it_is(network: nn.Module, token_BT: Tensor, step: int) -> Tensor:
    """The network is learned from as it is asked."""
    return network(token_BT)
