"""Whether a JSON schema has a finite value, and which references stand in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from polydec.base.errors import RequestError
from polydec.laws.constraints.anchors import ReferenceResolver

DEEPEST = 200
"""Values inside one another."""


def has_finite_value(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has a finite value, as far as references and what is required tell. What
    else stands in it counts as having one, so no schema is refused wrongly.
    """
    follow = ReferenceResolver(schema).follow_reference
    # A fixed point: a reference has a finite value once all that it needs has one.
    targets = {ref: follow(ref) for ref in schema_references(schema)}
    waits = defaultdict[str, list[str]](list)
    fruitful = set[str]()
    for ref, there in targets.items():
        for needed in schema_references(there):
            waits[needed].append(ref)
    looking = list(targets)
    while looking:  # at each, and again where a reference in it turned out to have one
        ref = looking.pop()
        if ref not in fruitful and (targets[ref] is None or _ends(targets[ref], fruitful)):
            fruitful.add(ref)
            looking += waits[ref]
    return _ends(schema, fruitful)


def _ends(schema: Any, fruitful: set[str]) -> bool:
    """Whether there is a finite value, where these references have one and the others have none."""
    if not isinstance(schema, Mapping):
        return True
    for key in ("anyOf", "oneOf"):
        options = _entries(schema.get(key))
        # An alternative is enough, but one must end.
        if options and not any(_ends(x, fruitful) for x in options):
            return False
    # What must be there must end: all of allOf, required properties, items that minItems asks for.
    needed = _entries(schema.get("allOf"))
    known = schema.get("properties")
    if schema.get("type") == "object" and isinstance(known, Mapping):
        needed = [
            *needed,
            *(
                known[x]
                for x in _entries(schema.get("required"))
                if isinstance(x, str) and x in known
            ),
        ]
    if (
        schema.get("type") == "array"
        and isinstance(schema.get("minItems"), int)
        and schema["minItems"] > 0
    ):
        needed = [*needed, schema.get("items")]
    # A value is finite where everything that it must hold is.
    ref = schema.get("$ref")
    return (not isinstance(ref, str) or ref in fruitful) and all(_ends(x, fruitful) for x in needed)


def schema_references(value: Any, depth: int = 0) -> set[str]:
    """Collect the references in a schema, wherever they stand.

    Args:
        value: The schema, or a part of it.
        depth: How deep it stands. Default 0.

    Returns:
        The values of all `$ref`.

    Raises:
        RequestError: It is nested too deeply.
    """
    if depth > DEEPEST:
        raise RequestError(f"json_schema is nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return set[str]().union(*(schema_references(x, depth + 1) for x in value))
    if not isinstance(value, Mapping):
        return set()
    if isinstance(value.get("$ref"), str):
        own = {value["$ref"]}
    else:
        own = set[str]()
    return own.union(*(schema_references(x, depth + 1) for x in value.values()))


def _entries(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []
