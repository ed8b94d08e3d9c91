"""What the methods of readers have in common: which reader a method takes, and the answer of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.decoder import Decoder
from polydec.methods.registry.kit import Kit


def reads_by(reading: str) -> Callable[[Any], bool]:
    """Says of a `WordReader` whether its head is of this method."""

    def has_head(reader: Any) -> bool:
        return reader.reading == reading

    return has_head


def reading_decoder(
    kit: Kit, reading: str, read: Callable[[Any, Any], Any] | None = None
) -> Decoder:
    """The decoder of a method whose reader's word is the answer.

    Args:
        kit: What the recipe is given.
        reading: The method, whose head the reader has.
        read: How it reads. Default None: as its head does by itself.

    Returns:
        The decoder.

    Raises:
        RequestError: The request says which texts are allowed, which a reader does not know.
        PolydecError: There is no such reader, or no image.
    """
    from polydec.methods.speculative.loop.one_pass_reading import OnePassReading
    from polydec.models.learned.kinds.word_reader import WordReader, usual_reading

    if kit.language is not None:
        raise RequestError(
            f"constraint is given: method {reading} writes what its reader reads, so leave it out or take read-ahead"
        )
    reader = kit.needed_artefact(WordReader, reads_by(reading))
    return OnePassReading(reader, kit.read_strip, kit.target.vocab, read or usual_reading)
