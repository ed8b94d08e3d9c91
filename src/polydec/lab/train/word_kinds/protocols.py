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
    """A tokenizer whose tokens are bytes.

    Args:
        spec: Options; not used.
        texts: Not used: nothing is learned.

    Returns:
        The tokenizer.
    """
    return train_tokenizer([], 256 + len(SPECIAL))


def word_end_bytes(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of bytes that end a word, and of the end of a text."""
    # A byte is a token here, so each of PARTS is one id.
    parts = tokenizer.encode("".join(PARTS), add_special_tokens=False).ids
    return frozenset((*parts, mark_id(tokenizer, END)))


@dataclass(frozen=True)
class WordModelKind:
    """A kind of model over bytes or words. Whatever its units are, its law is one of texts.

    Attributes:
        make: Makes a network that reads token ids, BEGIN first, shape ``[B, T]``, and gives the
            logits of what follows each, shape ``[B, T, V]``.
        learn: The same logits, as they are learned from at a step.
        save: Writes a directory that `polydec.load` reads.
        beside: Figures of the kind's own over held-out texts, each as far as a row is long.
        tokenizer: Makes the tokenizer, from the texts that are trained on.
        ends: Ids that end a word; none where words are not counted.
        loss: The loss of whole rows, BEGIN first, at a step; None: of what follows each token.
        told: Figures over held-out texts and the same with slips, in place of bits a byte; None: the
            kind has a law from left to right.
    """

    make: Callable[[WordsSpec, Tokenizer], nn.Module]
    learn: Callable[[Any, Tensor, int], Tensor]
    save: Callable[[Path, Any, Tokenizer, WordsSpec], None]
    beside: Callable[[Any, Sequence[Sequence[int]], int], Mapping[str, Any]]
    tokenizer: Callable[[WordsSpec, Sequence[str]], Tokenizer] = of_bytes
    ends: Callable[[Tokenizer], frozenset[int]] = word_end_bytes
    loss: Callable[[Any, Tensor, int], Tensor] | None = None
    told: (
        Callable[[Any, Sequence[Sequence[int]], Sequence[Sequence[int]], int], Mapping[str, Any]]
        | None
    ) = None


def files_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a directory holds besides weights and config.

    There is no chat template, as these models learn running text.
    """
    files = tokenizer_files(tokenizer, CONTEXT)
    del files["tokenizer_config.json"]["chat_template"]
    return files


def as_it_is(network: nn.Module, token_BT: Tensor, step: int) -> Tensor:
    """Logits as the network gives them: nothing changes with the step.

    Args:
        network: The network.
        token_BT: Token ids, shape ``[B, T]``.
        step: Not used.

    Returns:
        Shape ``[B, T, V]``.
    """
    return network(token_BT)
