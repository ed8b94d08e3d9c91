"""A tokenizer of which every letter is a token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from polydec.lab.train.data import BEGIN, END


def letter_tokenizer(letters: str) -> Tokenizer:
    """A tokenizer that knows some letters and two marks: BEGIN, which is token 0, and END, 1.

    Args:
        letters: The letters, each once; the first is token 2.

    Returns:
        The tokenizer. A letter that it does not know is left out of a text. It adds no marks.
    """
    vocab = {BEGIN: 0, END: 1, **{letter: 2 + i for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=BEGIN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in (BEGIN, END)]
    )
    return tokenizer


def letter_tokenizer_files(tokenizer: Tokenizer) -> Mapping[str, Any]:
    """What a model's directory holds beside its config and weights: the content of each file by its
    name, texts as they are and the rest to be written as JSON."""
    ids = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}
    return {
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {"eos_token": END, "pad_token": BEGIN},
        "generation_config.json": ids,
    }
