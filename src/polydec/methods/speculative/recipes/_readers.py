"""What the methods of readers have in common: which reader a method takes, and the answer of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from polydec.base.errors import RequestError
from polydec.methods.registry.kit import ArtefactNeed, Kit

if TYPE_CHECKING:
    from polydec.methods.speculative.loop.one_pass_reading import OnePassReading


def needed_reader(reading: str) -> ArtefactNeed:
    """The need of a method that reads with a head of its own.

    Args:
        reading: The method.

    Returns:
        The need of a `WordReader` whose head is the method's.
    """

    def has_own_head(reader: Any) -> bool:
        return reader.reading == reading

    return ArtefactNeed("word-reader", f"a reader with a head of {reading}", has_own_head)


def reading_decoder(
    kit: Kit, reading: str, read: Callable[..., Any] | None = None
) -> OnePassReading:
    """The decoder of a method whose reader's word is the answer.

    Args:
        kit: What the recipe is given.
        reading: The method, whose head the reader has.
        read: How it reads: of the head, the states of an image and a stream it makes logits of
            letters. Default None: as its head does by itself.

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
    reader = kit.needed_artefact(WordReader, needed_reader(reading).which)
    return OnePassReading(reader, kit.read_strip, kit.target.vocab, read or usual_reading)


def walking_decoder(kit: Kit, reading: str, rounds: int | None) -> OnePassReading:
    """The decoder of a method whose reader walks over an image.

    Args:
        kit: What the recipe is given.
        reading: The method, whose head the reader has.
        rounds: Walks behind the first. None: as it was trained.

    Returns:
        The decoder.

    Raises:
        RequestError: Rounds are asked for of a reader that was trained without, or `reading_decoder`
            refuses the request.
        PolydecError: There is no such reader, or no image.
    """
    from polydec.models.nets.neighbour_head import walk_word

    decoder = reading_decoder(kit, reading, partial(walk_word, rounds=rounds))
    # Before any pass: a head without rounds has no weights for them.
    if rounds and not decoder.reader.shape.rounds:
        raise RequestError(
            f"rounds is {rounds}: this reader was trained without any, so leave it out or train one with --rounds 2"
        )
    return decoder
