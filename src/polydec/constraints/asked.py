"""Constraints by their names, as commands and requests give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import shown
from polydec.constraints.any_of import AnyOf
from polydec.constraints.json_schema import ANY_OBJECT, JsonSchema
from polydec.constraints.lark import Lark
from polydec.constraints.protocols import Constraint
from polydec.constraints.regex import Regex
from polydec.constraints.span_of import SpanOf


def _schema(value: Any) -> Constraint:
    """Of a schema's JSON text, or of a schema that has been read."""
    if isinstance(value, str):
        return JsonSchema(value)
    if not isinstance(value, Mapping):
        raise RequestError(
            f"json_schema is {shown(value)}: it must be a JSON schema, which is an object"
        )
    return JsonSchema.of(value)


def _object(value: Any) -> Constraint | None:
    if not isinstance(value, bool):
        raise RequestError(f"json_object is {shown(value)}: it must be true or false")
    return ANY_OBJECT if value else None


def _choice(value: Any) -> Constraint:
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"choice is {shown(value)}: it must be a list of texts")
    return AnyOf(tuple(value))


KINDS: Mapping[str, Callable[[Any], Constraint | None]] = MappingProxyType(
    {
        "regex": Regex,
        "json_schema": _schema,
        "json_object": _object,
        "grammar": Lark,
        "choice": _choice,
        "span_of": SpanOf,
    }
)
"""What each name takes."""


def one(given: Mapping[str, Any]) -> Constraint | None:
    """The constraint of some fields, of which at most one may be given (None: not given). Raises RequestError for several, or a
    value that means none."""
    on = {name: value for name, value in given.items() if value is not None}
    if len(on) > 1:
        raise RequestError(f"{' and '.join(on)} are both given: an answer has one constraint")
    return next((KINDS[name](value) for name, value in on.items()), None)
