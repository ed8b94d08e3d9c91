"""Sizes of a Byte2Word model, as its config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from polydec.base.edge import validate_record
from polydec.base.errors import RequestError
from polydec.base.outside_records import StrictRecord
from polydec.models.formats.word_config import (
    Layers,
    Size,
    Token,
    WordConfig,
    require_marks_in_vocab,
    word_config_content,
)

MODEL_TYPE = "polydec_byte2word"

WORD_ROW = 256
"""Row of the byte table that stands before the bytes of every word; those of marks follow it."""


class ByteWordConfigFields(StrictRecord):
    """What config.json must say."""

    vocab_size: Size
    begin: Token
    ends: Annotated[list[Token], Field(min_length=1, max_length=256)]
    width: Size
    layers: Layers
    small: Size
    queries: Annotated[int, Field(ge=1, le=256)]
    rows: Annotated[int, Field(gt=WORD_ROW, le=1 << 12)]
    longest: Annotated[int, Field(ge=1, le=256)]
    chained: bool
    # Absent in older files.
    masked: bool = False
    context: Annotated[int, Field(ge=2, le=1 << 20)]


@dataclass(frozen=True)
class ByteWordConfig:
    """Sizes of a Byte2Word model.

    Attributes:
        vocab: Number of pieces and marks.
        begin: The mark before a text.
        ends: Pieces that end a word.
        width: Size of the backbone's states.
        layers: Layers of the backbone.
        small: Size of the embeddings of bytes.
        queries: Learned queries that look at a word's bytes, each with a share of `small`.
        rows: Rows of the table of bytes: 256, one that stands before each word, and marks.
        longest: Bytes of a word that are read, and pieces at which it ends at the latest.
        chained: Whether a piece of a word sees the one before it.
        masked: Whether masked words are told from both sides; else each from those before it.
        context: Pieces of a text.
        eps: Added to the norms' mean squares.
        theta: Base of rotary embedding.
        head: Size of a head of the backbone.
    """

    vocab: int
    begin: int
    ends: tuple[int, ...]
    width: int
    layers: int
    small: int
    queries: int
    rows: int
    longest: int
    chained: bool = False
    context: int = 1024
    masked: bool = False
    # From here on what no config.json says: it is the same in all such models.
    eps: float = 1e-5
    theta: float = 10000.0
    head: int = 32
    # The backbone asks each kind of model for it; here a word is one vector.
    slots: ClassVar[int] = 1

    def to_json(self, *, eos: int) -> dict[str, Any]:
        """The content of config.json."""
        own = {k: v for k, v in asdict(self).items() if k in ByteWordConfigFields.model_fields}
        return word_config_content("PolydecByte2Word", MODEL_TYPE, self.vocab, own, eos)


def read_byte_word_config(config: Mapping[str, Any]) -> ByteWordConfig:
    """Read the content of a config.json.

    Raises:
        RequestError: It is not that of such a model.
    """
    f = validate_record(ByteWordConfigFields, dict(config), "config.json of a Byte2Word model")
    # The head's size is fixed: the width must be a multiple of it.
    if f.width % WordConfig.head:
        raise RequestError(f"config.json: width is {f.width}: it must be a multiple of 32")
    # Queries share the width of a byte, in equal parts.
    if f.small % f.queries:
        raise RequestError(
            f"config.json: small is {f.small}: it must be a multiple of queries, {f.queries}"
        )
    if f.masked:
        raise RequestError(
            "this model tells masked words from both sides, so it writes no text: training.json says how well "
            "(a model that writes is `polydec train words --kind byte2word`)"
        )
    require_marks_in_vocab(f.begin, f.ends, f.vocab_size)
    return ByteWordConfig(
        f.vocab_size,
        f.begin,
        tuple(f.ends),
        f.width,
        f.layers,
        f.small,
        f.queries,
        f.rows,
        f.longest,
        f.chained,
        f.context,
    )
