"""Sizes of a word-pooled model, as its config.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from polydec.base.edge import validate_record
from polydec.base.errors import RequestError
from polydec.base.outside_records import StrictRecord

MODEL_TYPE = "polydec_word_pooled"

Size = Annotated[int, Field(ge=1, le=1 << 16)]
Layers = Annotated[int, Field(ge=1, le=256)]
Token = Annotated[int, Field(ge=0, lt=1 << 16)]


class WordConfigFields(StrictRecord):
    """What config.json must say."""

    vocab_size: Size
    begin: Token
    ends: Annotated[list[Token], Field(min_length=1, max_length=256)]
    width: Size
    layers: Layers
    small: Size
    slots: Annotated[int, Field(ge=1, le=64)]
    longest: Annotated[int, Field(ge=1, le=256)]
    encoder: Layers
    decoder: Layers
    context: Annotated[int, Field(ge=2, le=1 << 20)]


@dataclass(frozen=True)
class WordConfig:
    """Sizes of a word-pooled model.

    Attributes:
        vocab: Number of bytes and marks.
        begin: The mark before a text.
        ends: Tokens that end a word.
        width: Size of the backbone's states.
        layers: Layers of the backbone.
        small: Size of states inside a word.
        slots: Vectors of a word.
        longest: Tokens of a word, which ends there at the latest.
        encoder: Layers that read a word.
        decoder: Layers that write one.
        context: Tokens of a text.
        eps: Added to the norms' mean squares.
        theta: Base of rotary embedding.
        head: Size of a head.
    """

    vocab: int
    begin: int
    ends: tuple[int, ...]
    width: int
    layers: int
    small: int
    slots: int
    longest: int
    encoder: int = 1
    decoder: int = 2
    context: int = 1024
    eps: float = 1e-5
    theta: float = 10000.0
    head: int = 32

    def to_json(self, *, eos: int) -> dict[str, Any]:
        """The content of config.json."""
        own = {k: v for k, v in asdict(self).items() if k in WordConfigFields.model_fields}
        return word_config_content("PolydecWordPooled", MODEL_TYPE, self.vocab, own, eos)


def word_config_content(
    architecture: str, model_type: str, vocab: int, own: Mapping[str, Any], eos: int
) -> dict[str, Any]:
    """Make the content of config.json of a model that reads words.

    Args:
        architecture: Its name there.
        model_type: Its type there.
        vocab: Tokens and marks.
        own: What the file must say besides, the marks `begin` and `ends` among it.
        eos: The mark behind a text.

    Returns:
        The content, which other programs read as far as they know its fields.
    """
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab,
        **own,
        "ends": list(own["ends"]),
        "bos_token_id": own["begin"],
        "eos_token_id": eos,
    }


def require_marks_in_vocab(begin: int, ends: Sequence[int], vocab: int) -> None:
    """Check that marks are rows of the embedding table, too.

    Args:
        begin: The mark before a text.
        ends: Tokens that end a word, at least one.
        vocab: Rows of the table.

    Raises:
        RequestError: They are not.
    """
    largest = max(begin, *ends)
    if largest >= vocab:
        raise RequestError(
            f"config.json: begin and ends must lie below vocab_size, {vocab}: the largest is {largest}"
        )


def read_word_config(config: Mapping[str, Any]) -> WordConfig:
    """Read the content of a config.json.

    Raises:
        RequestError: It is not that of such a model.
    """
    f = validate_record(WordConfigFields, dict(config), "config.json of a word-pooled model")
    for name, width in (("width", f.width), ("small", f.small)):
        # The head's size is fixed: widths must be multiples of it.
        if width % WordConfig.head:
            raise RequestError(f"config.json: {name} is {width}: it must be a multiple of 32")
    require_marks_in_vocab(f.begin, f.ends, f.vocab_size)
    return WordConfig(
        f.vocab_size,
        f.begin,
        tuple(f.ends),
        f.width,
        f.layers,
        f.small,
        f.slots,
        f.longest,
        f.encoder,
        f.decoder,
        f.context,
    )
