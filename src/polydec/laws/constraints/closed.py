"""Objects that hold the properties that a schema names, and no others where it does not speak of others; integers of 16 digits;
times of day in nanoseconds at most.

A schema that only names properties allows any others beside them, by the standard. Hardly anybody means that, and a small model
makes up properties without end. So they are left out, unless `additionalProperties` says that there may be some. Digits
it repeats without end as well, so an integer without bounds is one that every JSON reader tells from its neighbours, and a
second has nine digits behind its point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Any

ONE = ("items", "additionalProperties")
LIST = ("anyOf", "prefixItems")
EACH = ("properties", "patternProperties", "$defs", "definitions")
"""Where fewer values of a part are fewer values of the whole. In `oneOf` and `not` they may be
others, and what is added up in `allOf` must not be closed one by one.
"""

SPEAKS_OF_OTHERS = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
    }
)
"""Keys beside `properties` by which there may be properties with other names."""


LARGEST = 2**53 - 1
"""The largest integer below which a double holds all (RFC 8259, section 6)."""


TIMES = ("time", "date-time")
NANOSECONDS = r"^[^.]*(\.[0-9]{1,9}([^0-9].*)?)?$"
"""Formats that hold seconds, and a pattern beside them: RFC 3339 has any number of digits behind
the point.
"""


def close_schema_objects(
    schema: Mapping[str, Any], follow: Callable[[str], Schema | None]
) -> Mapping[str, Any]:
    """Close the objects of a schema, and bound its integers and times.

    The result allows nothing that `schema` does not: none of the properties that nobody speaks of,
    no integer beyond LARGEST where nothing is said of its size, and no part of a second below a
    nanosecond.

    Args:
        schema: A JSON schema.
        follow: Gives what a reference points to, None where that is not plain; then the schema is
            left as it is.

    Returns:
        The closed schema.
    """
    # References that cannot be followed might lead to parts that must stay open.
    targets = {ref: follow(ref) for ref in _references(schema)}
    if any(there is None for there in targets.values()):
        return schema
    kept = set[int]()
    waiting = list(_others(schema))
    while waiting:  # what is referred to from where nothing may be closed stays open as well
        for ref in _references(waiting.pop()):
            if id(targets[ref]) not in kept:
                kept.add(id(targets[ref]))
                waiting.append(targets[ref])
    return _ObjectCloser(frozenset(kept)).closed_schema(schema)


@dataclass(frozen=True)
class _ObjectCloser:
    """kept: the parts that are left as they are, by identity."""

    kept: frozenset[int]

    def closed_schema(self, schema: Schema) -> Schema:
        if not isinstance(schema, Mapping) or id(schema) in self.kept:
            return schema
        out = dict(schema)
        for key, value in schema.items():
            if key in ONE:
                out[key] = self.closed_schema(value)
            elif key in LIST and isinstance(value, list):
                # Objects that add names to those of an anyOf must not be closed in its parts.
                if key == "prefixItems" or "properties" not in schema:
                    out[key] = [self.closed_schema(x) for x in value]
                else:
                    out[key] = value
            elif key in EACH and isinstance(value, Mapping):
                out[key] = {name: self.closed_schema(x) for name, x in value.items()}
        # Integers get a bound on each side where the schema says none.
        kinds = schema.get("type")
        if (
            "integer" in (types := kinds if isinstance(kinds, list) else [kinds])
            and "number" not in types
        ):
            out |= _bounds(schema)
        # The library takes any number of digits behind a second; readers of such times take nine.
        if schema.get("format") in TIMES and "pattern" not in schema:
            out["pattern"] = NANOSECONDS
        known = schema.get("properties")
        needed = schema.get("required", [])
        # Closed where names are listed, nothing speaks of others, and all required names are among
        # them.
        if (
            isinstance(known, Mapping)
            and known
            and not SPEAKS_OF_OTHERS & set(schema)
            and isinstance(needed, list)
            and all(name in known for name in needed)
        ):
            out["additionalProperties"] = False
        return out


def _bounds(schema: Mapping[str, Any]) -> dict[str, int]:
    """Of integers, on the sides where a schema says none."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    out = dict[str, int]()
    # A bound on the other side that is already beyond LARGEST would leave no integer.
    if low is None and (high is None or (isinstance(high, (int, float)) and high > -LARGEST)):
        out["minimum"] = -LARGEST
    if high is None and (low is None or (isinstance(low, (int, float)) and low < LARGEST)):
        out["maximum"] = LARGEST
    return out


def _others(schema: Schema) -> Iterator[Schema]:
    """The parts of a schema that `_ObjectCloser` does not look into."""
    if isinstance(schema, list):
        for x in schema:
            yield from _others(x)
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in EACH and isinstance(value, Mapping):
                for x in value.values():
                    yield from _others(x)
            elif (
                key in ONE
                or key == "prefixItems"
                or (key == "anyOf" and "properties" not in schema)
            ):
                yield from _others(value)
            elif key != "$ref":
                yield value


def _references(value: Any) -> Iterator[str]:
    """All that is referred to, anywhere."""
    if isinstance(value, list):
        for x in value:
            yield from _references(x)
    elif isinstance(value, Mapping):
        for key, x in value.items():
            if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(x, str):
                yield x
            else:
                yield from _references(x)
