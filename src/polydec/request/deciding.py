"""How texts are sorted into classes: what users say of it, known without torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import (
    AtLeast,
    GreaterThan,
    InRange,
    Option,
    ValueNote,
    callable_options,
    convert_dataclass_fields,
    short_repr,
)

TEXT = "{text}"
PROMPTS = (
    "Request: {text}\nThe topic of this request is",
    '"{text}"\nIn one or two words, this is about',
    "A user says: {text}\nThe user wants help with",
    "Message: {text}\nCategory:",
)
"""Where nothing else is asked for. A class's name is read behind each."""
MOST_PROMPTS = 64
MOST_CLASSES = 4096


@dataclass(frozen=True)
class ClassifierSettings:
    """How texts are sorted into classes. Raises RequestError for what cannot be."""

    width: Annotated[int, InRange(1, 4096), "numbers of a feature"] = 128
    prototypes: Annotated[
        int | None, InRange(1, 64), ValueNote("none: one a prompt"), "prototypes of a class"
    ] = None
    averaged: Annotated[
        bool, "compare the mean over prompts in place of transport (the weaker baseline)"
    ] = False
    softness: Annotated[float, InRange(0.001, 100.0), "weight of entropy in the transport"] = 0.05
    rounds: Annotated[int, InRange(1, 10_000), "Sinkhorn's steps"] = 50
    sharpness: Annotated[
        float, GreaterThan(0.0), "what the transport's cost begins multiplied by"
    ] = 10.0
    weight: Annotated[
        float | None,
        AtLeast(0.0),
        ValueNote("none: one over the examples of a class"),
        "weight of the calibrated words beside the prototypes",
    ] = None
    words: Annotated[
        int, InRange(0, 256), "words that a class's own examples add to those of its name"
    ] = 5
    epochs: Annotated[int, InRange(0, 10_000), "times that the examples are learned from"] = 50
    rate: Annotated[float, InRange(0.0, 1.0), "Adam's step"] = 0.01
    seed: Annotated[int, AtLeast(0), "of the matrix that features begin with"] = 0

    def __post_init__(self) -> None:
        convert_dataclass_fields(self)


def check_classifier_prompts(prompts: tuple[str, ...]) -> tuple[str, ...]:
    """The prompts. Raises RequestError where there is none, too many, or one without a place for
    the text."""
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise RequestError(f"prompts are {len(prompts)}: give 1 to {MOST_PROMPTS}")
    for prompt in prompts:
        if not isinstance(prompt, str) or prompt.count(TEXT) != 1:
            raise RequestError(f"prompt is {short_repr(prompt)}: it must hold {TEXT} once")
    return prompts


@cache
def classifier_options() -> MappingProxyType[str, Option]:
    """The fields of `ClassifierSettings` with their types, ranges and help."""
    return MappingProxyType({o.name: o for o in callable_options(ClassifierSettings)})
