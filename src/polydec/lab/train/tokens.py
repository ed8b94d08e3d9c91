"""A byte-level BPE tokenizer for small models, with a plain chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from polydec.base.errors import RequestError
from polydec.lab.train.data import ASSISTANT, BEGIN, END, SPECIAL, USER
from polydec.models.text.tokenizer import byte_alphabet

CHAT = (
    "{{ '"
    + BEGIN
    + "' }}{% for m in messages %}{{ ('"
    + ASSISTANT
    + "' if m['role'] == 'assistant' else '"
    + USER
    + "') + m['content'] + '"
    + END
    + "' }}{% endfor %}{% if add_generation_prompt %}{{ '"
    + ASSISTANT
    + "' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], size: int = 4096, marks: Sequence[str] = ()) -> Tokenizer:
    """Train a byte-level BPE tokenizer.

    Encoding with special tokens puts BEGIN before a text; decoding gives the text back, byte for
    byte.

    Args:
        texts: Texts to learn merges from; none: bytes only.
        size: Tokens in all, the 256 bytes and the special ones included, up to 65,536. Default
            4096.
        marks: Special tokens besides the usual ones. Default: none.

    Returns:
        The tokenizer.

    Raises:
        RequestError: The size is out of range.
    """
    special = (*SPECIAL, *marks)
    # Bytes and special tokens are the least; ids are kept in two bytes.
    if not 256 + len(special) <= size <= 65536:
        raise RequestError(f"vocab is {size}: it must lie in {256 + len(special)} to 65536")
    tokenizer = Tokenizer(models.BPE())
    # Each digit is a token of its own, so that numbers are spelt alike everywhere.
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[AddedToken(t, special=True, normalized=False) for t in special],
            # All 256 bytes are tokens, so every text can be encoded.
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # Only BEGIN is added; whoever packs texts closes them.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def mark_id(tokenizer: Tokenizer, mark: str) -> int:
    """The id of one of our special tokens.

    Args:
        tokenizer: The tokenizer.
        mark: Text of the token.

    Returns:
        Its id.

    Raises:
        RequestError: The tokenizer does not have it.
    """
    token = tokenizer.token_to_id(mark)
    if token is None:
        raise RequestError(
            f"tokenizer has no token {mark}: one that was trained here, or beside a model of the zoo, has it"
        )
    return token


def byte_level_pieces(tokenizer: Tokenizer) -> list[bytes | None]:
    """The bytes of each token of a byte-level tokenizer; None for marks."""
    alphabet = byte_alphabet()
    marks = tokenizer.get_added_tokens_decoder()
    out: list[bytes | None] = [None] * tokenizer.get_vocab_size()
    for name, i in tokenizer.get_vocab().items():
        if i not in marks:
            out[i] = bytes(alphabet[x] for x in name)
    return out


def with_marks(tokenizer: Tokenizer, marks: Sequence[str]) -> Tokenizer:
    """Add special tokens after the others, where they are missing.

    Args:
        tokenizer: The tokenizer, changed in place.
        marks: Texts of the tokens.

    Returns:
        The same tokenizer.
    """
    tokenizer.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t in marks
            if tokenizer.token_to_id(t) is None
        ]
    )
    return tokenizer


def tokenizer_files(
    tokenizer: Tokenizer, context: int, marks: Sequence[str] = (), ends: Sequence[str] = ()
) -> dict[str, Any]:
    """What a Hugging Face directory holds besides config and weights.

    Args:
        tokenizer: The tokenizer.
        context: Positions of the model.
        marks: Further special tokens, which no answer holds. Default: none.
        ends: Those of the marks at which an answer ends. Default: none.

    Returns:
        Content of each file, by name.
    """
    # One end is a number, several are a list, as Hugging Face has it.
    close = [tokenizer.token_to_id(t) for t in (END, *ends)]
    # Marks that no answer holds are suppressed when texts are generated.
    never = [tokenizer.token_to_id(t) for t in marks if t not in ends]
    ids: dict[str, Any] = {
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        # One id or a list: generation_config.json takes both.
        "eos_token_id": close if ends else close[0],
    }
    if never:
        ids |= {"suppress_tokens": never}
    return {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT,
        },
        "generation_config.json": {**ids, "do_sample": False},
    }
