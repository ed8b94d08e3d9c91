"""A model that reads what somebody else writes, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import Target
from polydec.laws.targets.by_bytes import ByBytesTarget, SplitPrompt
from polydec.laws.targets.byte_covers import BYTES
from polydec.models.text.byte_text import lead_of

EVERY = tuple(bytes([b]) for b in range(BYTES))

EMPTY = (BYTES,)
"""The prompt of a text that begins with nothing: no text of bytes begins with a mark."""


@dataclass(frozen=True)
class ByteWords:
    """What symbols mean as text: bytes, and behind them marks that mean nothing.

    Attributes:
        marks: How many marks. Default 1.
    """

    marks: int = 1

    @property
    def pieces(self) -> tuple[bytes | None, ...]:
        return (*EVERY, *(None,) * self.marks)

    def encode(self, text: str, special: bool = True) -> tuple[int, ...]:
        """Turn a text into its UTF-8 bytes.

        Args:
            text: The text.
            special: Not read: no marks are added. Default True.

        Returns:
            The bytes.
        """
        return tuple(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(x for x in ids if x < BYTES).decode(errors="replace")


def read_as_bytes(law: Target, covers: int, who: str) -> ByBytesTarget:
    """Read a law of tokens as one of bytes (see `ByBytesTarget`).

    The prompt `EMPTY` stands for the beginning of a text.

    Args:
        law: The law of tokens.
        covers: How many sequences of tokens are followed that end with the same byte, at least 1.
        who: Whose law it is, for error messages.

    Returns:
        The law of bytes; its mark 256 ends a text.

    Raises:
        RequestError: It is not known what its tokens spell, or which of them begins or ends a text.
    """
    words = law.vocab.words
    if words is None or not any(words.pieces):
        raise RequestError(f"{who} has no tokens of which the bytes are known: name another model")
    ends = tuple(sorted(law.vocab.eos))
    # What the tokenizer puts before a text; a model without that begins behind an end.
    start = words.encode("") or ends[:1]
    if not start:
        raise RequestError(f"{who} has no token that begins or ends a text: name another model")
    lead = lead_of(words)
    begun = (EMPTY, SplitPrompt(start, (), lead))
    return ByBytesTarget(
        law, (ends,), ByteWords(), frozenset({0}), covers, lead, start, instead=begun
    )
