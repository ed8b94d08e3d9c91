"""A byte is a token: the plain network that the other kinds are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.lab.train.specs.words import CONTEXT, WordsSpec
from polydec.lab.train.tokens import mark_id
from polydec.lab.train.word_kinds.positions import by_position
from polydec.lab.train.word_kinds.protocols import WordModelKind, as_it_is, files_of


def byte_network_shape(spec: WordsSpec, vocab: int) -> LlamaShape:
    """The sizes of the network, or of the backbone of a kind that has one.

    Args:
        spec: Options; width and layers.
        vocab: Tokens of the vocabulary.

    Returns:
        The sizes; heads of 32.
    """
    heads = spec.width // 32
    return LlamaShape(vocab, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)


def build_byte_network(spec: WordsSpec, tokenizer: Tokenizer) -> TrainableLlama:
    """A new Llama over bytes.

    Args:
        spec: Options; the sizes.
        tokenizer: Tokenizer of bytes.

    Returns:
        The network, trainable.
    """
    return TrainableLlama(byte_network_shape(spec, tokenizer.get_vocab_size()), seed=spec.seed)


def save_byte_network(
    out: Path, network: TrainableLlama, tokenizer: Tokenizer, spec: WordsSpec
) -> None:
    """Save a Llama directory.

    Args:
        out: Directory to write.
        network: The trained network.
        tokenizer: Its tokenizer.
        spec: Options; not used.
    """
    config = network.s.config_content(bos=mark_id(tokenizer, BEGIN), eos=mark_id(tokenizer, END))
    save_directory(out, network, config, files=files_of(tokenizer), dtype=torch.float32)


def byte_position_figures(
    network: TrainableLlama, texts: Sequence[Sequence[int]], length: int
) -> Mapping[str, Any]:
    """Bits a byte by position; see `by_position`.

    Args:
        network: The trained network.
        texts: Token ids of held-out texts, BEGIN first.
        length: Tokens of a row.

    Returns:
        The figures by name.
    """
    return by_position(network, texts, length)


KIND = WordModelKind(build_byte_network, as_it_is, save_byte_network, byte_position_figures)
