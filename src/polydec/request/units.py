"""Other units than a model's own tokens: the same checkpoint as a law over bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polydec.base.errors import RequestError
from polydec.laws.targets.by_bytes import ByBytesTarget
from polydec.methods.registry.family import family_of
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.models.text.byte_text import SpecialTokenTable, byte_text, lead_of, marks_of, start_of
from polydec.models.text.tokenizer import Tokenizer

UNITS = {"tokens": "what the model's tokenizer makes", "bytes": "bytes of UTF-8"}
"""What an answer may be counted and written in."""

KEPT = ("temperature", "do_sample")
"""What a checkpoint says of sampling that means the same over bytes: a share or a penalty of tokens
means something else."""


def over_bytes(point: ModelBundle, covers: int) -> ModelBundle:
    """A checkpoint as a law over bytes.

    Args:
        point: As it was loaded.
        covers: How many sequences of tokens are followed that end with the same byte.

    Returns:
        The checkpoint.

    Raises:
        RequestError: Its tokens have no bytes, or it does not continue texts.
    """
    _check_byte_law(point)
    text = byte_text(point.text)
    law = _byte_law(point, marks_of(point.text), covers, text)
    generation = {k: v for k, v in point.generation.items() if k in KEPT}
    return replace(point, lm=law, text=text, generation=generation, unit="byte", vision=None)


def align_second_checkpoint(point: ModelBundle, first: ModelBundle, covers: int) -> ModelBundle:
    """A second checkpoint as a law over the symbols of a first one, whose tokenizer may be another.

    Args:
        point: The second checkpoint, as it was loaded.
        first: The first one, as it was loaded.
        covers: How many sequences of tokens are followed that end with the same byte.

    Returns:
        The second checkpoint.

    Raises:
        RequestError: Its tokens have no bytes, or it does not continue texts.
    """
    _check_byte_law(point)
    theirs = marks_of(first.text)
    law = _byte_law(
        point, theirs, covers, byte_text(first.text), theirs.of_tokenizer(marks_of(point.text))
    )
    return replace(point, lm=law, text=law.words, unit="byte", vision=None)


def _check_byte_law(point: ModelBundle) -> None:
    """Raise RequestError where a model has no law of a next byte."""
    if isinstance(point.lm, EncoderDecoderModel):
        raise RequestError(
            f"units is bytes: {point.name} writes from a source, and has a law of tokens only, so leave it out"
        )
    family = family_of(point.lm)
    if not family.continues_text:
        raise RequestError(
            f"units is bytes: {point.name} is {family.called} model, and only one that continues texts has a law of a "
            "next byte, so leave it out"
        )


def _byte_law(
    point: ModelBundle,
    marks: SpecialTokenTable,
    covers: int,
    text: Tokenizer,
    tokens: tuple[tuple[int, ...], ...] | None = None,
) -> ByBytesTarget:
    """The law over bytes. tokens: of each mark those of this model that mean it, None: its own."""
    words: Any = text
    return ByBytesTarget(
        point.lm,
        marks.own if tokens is None else tokens,
        words,
        marks.ends,
        covers,
        lead_of(point.text),
        start_of(point.text),
        marks.names,
    )
