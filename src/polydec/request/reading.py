"""How a vector is read out of a text: what users say of it, known without torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated

from polydec.base.errors import RequestError
from polydec.base.options import (
    AtLeast,
    MultilineText,
    OneOf,
    Option,
    ParseAs,
    ValueNote,
    callable_options,
    convert_dataclass_fields,
    short_repr,
)

TEXT = "{text}"
PLACE = "{placeholder}"


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a vector is read out of a text. Raises RequestError for what cannot be."""

    pool: Annotated[
        str | None,
        OneOf("last", "mean"),
        ValueNote("none: as an embedding model says, else last"),
        "the last token's state, or the mean",
    ] = None
    layer: Annotated[
        int | None,
        AtLeast(1),
        ValueNote("none: all, and the final norm"),
        "layers behind which it is read",
    ] = None
    normalised: Annotated[bool, "scale vectors to length 1"] = True
    template: Annotated[
        str | None,
        ParseAs(MultilineText | None),
        ValueNote("none: the text alone"),
        "what stands around a {text}, such as a task, and the {placeholder} of prepending",
    ] = None
    prompt: Annotated[
        str | None,
        ValueNote("none: what it says of texts without one"),
        "name of a prompt that an embedding model has, such as query",
    ] = None
    prepend_from: Annotated[
        int, AtLeast(0), "layers before the first one where the placeholder takes the last state"
    ] = 0
    prepend_to: Annotated[
        int, AtLeast(0), ValueNote("0: no prepending"), "layers before the end of those"
    ] = 0
    path: Annotated[
        int | None,
        AtLeast(1),
        ValueNote("none: all of them"),
        "of prefixes that were trained for it, the path that alone is read",
    ] = None
    join: Annotated[
        str | None,
        OneOf("mean", "concat"),
        ValueNote("none: mean"),
        "what becomes of the vectors of all paths: their mean, or one behind another",
    ] = None

    def __post_init__(self) -> None:
        convert_dataclass_fields(self)
        if self.prompt is not None and (self.template is not None or self.prepend_to):
            raise RequestError(
                f"prompt is {short_repr(self.prompt)}: it stands in the place of a template and of prepending, "
                "so leave these out"
            )
        if self.path is not None and self.join is not None:
            raise RequestError(
                f"join is {short_repr(self.join)} and path is {self.path}: one path has nothing to join, so leave one out"
            )
        around = self.text_around
        placed = self.prepend_to > 0
        if around.count(TEXT) != 1:
            raise RequestError(f"template is {short_repr(around)}: it must hold {TEXT} once")
        if around.count(PLACE) != placed:
            raise RequestError(
                f"template is {short_repr(around)}: it must hold {PLACE} "
                + ("once, before the text" if placed else "only with prepending (prepend_to)")
            )
        if placed and around.index(PLACE) > around.index(TEXT):
            raise RequestError(
                f"template is {short_repr(around)}: {PLACE} must stand before {TEXT}"
            )
        if placed and not self.prepend_from <= self.prepend_to:
            raise RequestError(
                f"prepend_from is {self.prepend_from}: it must be at most prepend_to ({self.prepend_to})"
            )

    @property
    def text_around(self) -> str:
        """The template."""
        if self.template is not None:
            return self.template
        published = 'This sentence : {placeholder} "{text}" means in one word:"'
        if self.prepend_to:
            return published
        return TEXT


@cache
def embedding_options() -> MappingProxyType[str, Option]:
    """The fields of `EmbeddingSettings` with their types, ranges and help."""
    return MappingProxyType({o.name: o for o in callable_options(EmbeddingSettings)})
