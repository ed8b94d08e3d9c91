"""Constraints by their names, as commands and requests give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from polydec.base import plugins
from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.base.options import name_suggestion, short_repr
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.json_schema import ANY_OBJECT, JsonSchema
from polydec.laws.constraints.lark import LarkGrammar
from polydec.laws.constraints.protocols import OutputConstraint
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanOf
from polydec.laws.constraints.triplets import TripletGrammar


@dataclass(frozen=True)
class ConstraintKind:
    """A way to ask for a constraint, which another package brings as its module's KIND
    (`plugins.py`).

    Attributes:
        name: What a request and `--constraint NAME=VALUE` call it.
        help: What its value is, one line.
        make: Makes the constraint of a value, which is a text or whatever JSON holds; raises
            RequestError, naming what is legal, for a value that means none.
    """

    name: str
    help: str
    make: Callable[[Any], OutputConstraint]


def _schema(value: Any) -> OutputConstraint:
    """Of a schema's JSON text, or of a schema that has been read."""
    if isinstance(value, str):
        return JsonSchema(value)
    if not isinstance(value, Mapping):
        raise RequestError(
            f"json_schema is {short_repr(value)}: it must be a JSON schema, which is an object"
        )
    return JsonSchema.of_schema(value)


def _object(value: Any) -> OutputConstraint | None:
    # The field is a switch: false asks for nothing.
    if not isinstance(value, bool):
        raise RequestError(f"json_object is {short_repr(value)}: it must be true or false")
    if value:
        return ANY_OBJECT
    return None


def _choice(value: Any) -> OutputConstraint:
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"choice is {short_repr(value)}: it must be a list of texts")
    return AnyOf(tuple(value))


KINDS: Mapping[str, Callable[[Any], OutputConstraint | None]] = MappingProxyType(
    {
        "regex": Regex,
        "json_schema": _schema,
        "json_object": _object,
        "grammar": LarkGrammar,
        "choice": _choice,
        "span_of": SpanOf,
        "triplets": TripletGrammar.of_value,
    }
)
"""What each name takes."""


@cache
def plugin_constraint_kinds() -> Mapping[str, ConstraintKind]:
    """The kinds of other packages by their names."""
    return MappingProxyType(
        plugins.load_plugins("constraints", KINDS, plugins.with_kind, "KIND of that name")
    )


def of_another(name: str, value: Any) -> OutputConstraint:
    """Make a constraint of a kind that another package brings.

    Args:
        name: Name of the kind.
        value: What the request gives: a text, or whatever JSON holds.

    Returns:
        The constraint.

    Raises:
        RequestError: No package brings the kind, or the value means no constraint.
    """
    known = plugin_constraint_kinds()
    if name not in known:
        raise RequestError(
            f"constraint has no kind {short_repr(name)}: "
            + (
                name_suggestion(name, known, "the kinds")
                if known
                else "no package that brings kinds is here"
            )
        )
    try:
        return known[name].make(value)
    except ValueError as error:  # another package may not know our kinds of errors
        raise RequestError(error_sentence(error)) from None


def constraint_kinds_table() -> str:
    """The kinds of other packages, for the docs."""
    rows = [
        f"| `{kind.name}` | {kind.help} |" for _, kind in sorted(plugin_constraint_kinds().items())
    ]
    return "\n".join(["| kind | its value |", "|---|---|", *(rows or ["| none | |"])])


def constraint_of(fields: Mapping[str, Any]) -> OutputConstraint | None:
    """The constraint of some fields, by our names or those of other packages, of which at most one
    may be given (None: not given). Raises RequestError for several, or a value that means none.
    """
    on = {name: value for name, value in fields.items() if value is not None}
    if len(on) > 1:
        raise RequestError(f"{' and '.join(on)} are both given: an answer has one constraint")
    for name, value in on.items():
        if name in KINDS:
            return KINDS[name](value)
        return of_another(name, value)
    return None
