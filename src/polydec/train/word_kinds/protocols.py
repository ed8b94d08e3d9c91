"""What a kind of model over bytes or words is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor, nn

from polydec.train.specs.words import CONTEXT, WordsSpec
from polydec.train.tokens import tokenizer_files


@dataclass(frozen=True)
class Kind:
    """make: a network that reads tokens [B, T], BEGIN first, and gives the logits of what follows each,
    [B, T, V]: whatever its units are, its law is one of bytes. learn: the same logits as they are
    learned from at a step. save: writes a directory that `polydec.load` reads. beside: figures of its
    own, of held-out texts."""

    make: Callable[[WordsSpec, Tokenizer], nn.Module]
    learn: Callable[[Any, Tensor, int], Tensor]
    save: Callable[[Path, Any, Tokenizer, WordsSpec], None]
    beside: Callable[[Any, Sequence[Sequence[int]]], Mapping[str, Any]]


def files_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a directory holds beside weights and config: no chat template, as these models learn running text."""
    files = tokenizer_files(tokenizer, CONTEXT)
    del files["tokenizer_config.json"]["chat_template"]
    return files


def as_it_is(network: nn.Module, token_BT: Tensor, step: int) -> Tensor:
    """The network is learned from as it is asked."""
    return network(token_BT)
