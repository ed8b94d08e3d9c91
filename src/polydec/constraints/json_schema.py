"""A JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from polydec.constraints import guidance
from polydec.constraints.closed import closed
from polydec.constraints.narrow import narrow
from polydec.core.types import Vocab
from polydec.edge import parse_object, sentence

LONGEST, DEEPEST = 4_000_000, 200
"""Characters of a schema, and values inside one another."""

SPACE = r" ?|\n {0,20}"
"""White space between the parts of a value: a space at most, or a line break with an indent of at most 20. More of it says
nothing, and a small model would not come to an end of it."""


@dataclass(frozen=True)
class JsonSchema:
    """The answer is a JSON value that a schema (its JSON text) allows. Properties stand in the order of the schema, and where
    it names some and says nothing of others, there are no others (see `closed`).

    Where a keyword cannot be followed exactly, values are left out that it might allow (see `narrow`); where that leaves none,
    it is refused, and named. The keys of `x-guidance` in a schema (llguidance's own: separators, white space) are followed.
    """

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise ValueError(f"json_schema has {len(self.text)} characters: it may have {LONGEST}")
        parse_object(self.text, "json_schema")

    @staticmethod
    def of(schema: Mapping[str, Any]) -> JsonSchema:
        """Of a schema that has been read already. Raises ValueError for what is no JSON."""
        try:
            return JsonSchema(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(sentence(f"json_schema is not a JSON object: {error}")) from None

    def language(self, vocab: Vocab, ends: frozenset[int]) -> guidance.Grammar:
        return guidance.grammar(lark(self.followed(vocab, ends)), vocab, ends)

    def followed(self, vocab: Vocab, ends: frozenset[int]) -> Mapping[str, Any]:
        """The schema as it can be followed exactly: closed, and narrowed where need be. Raises ValueError where it cannot."""
        schema = parse_object(self.text, "json_schema")
        if not finite(schema):
            raise ValueError("json_schema holds no finite value: it always needs itself again")
        try:
            return _followed(schema, vocab, ends)
        except guidance.Malformed as error:
            try:
                return _followed(narrow(schema), vocab, ends)
            except ValueError:  # what is wrong is said of the schema as it was given
                pass
            where, problem = _place(schema, str(error), vocab, ends)
            raise ValueError(
                sentence(f"json_schema at {where}: {guidance.first_line(problem)}")
            ) from None


def _followed(schema: Mapping[str, Any], vocab: Vocab, ends: frozenset[int]) -> Mapping[str, Any]:
    """Without the properties that nobody speaks of; with them, where nothing is left."""
    try:
        narrower = closed(schema, lambda ref: _follow(schema, ref))
        guidance.grammar(lark(narrower), vocab, ends)
        return narrower
    except ValueError:
        guidance.grammar(lark(schema), vocab, ends)
        return schema


ANY_OBJECT = JsonSchema(
    '{"type": "object", "minProperties": 1, "x-guidance": {"whitespace_flexible": false, "whitespace_pattern": null}}'
)
"""Any JSON object that says something, without white space between its parts: what OpenAI's response_format calls
json_object. A model that sees nothing of the constraint would often write {} or spaces."""


def lark(schema: Mapping[str, Any]) -> str:
    """The grammar of a schema's values, as llguidance reads it."""
    return f"start: {values(schema)}"


def values(
    schema: Mapping[str, Any],
    spaced: Mapping[str, Any] = MappingProxyType({"whitespace_pattern": SPACE}),
) -> str:
    """A schema's values, as a part of such a grammar; spaced: how, where the schema does not say."""
    own = schema.get("x-guidance")
    guided = {**spaced, **(own if isinstance(own, Mapping) else {})}
    return f"%json {json.dumps({**schema, 'x-guidance': guided})}"


_EACH = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas that stand in a schema, and where."""
    for key, value in schema.items():
        if key in _EACH and isinstance(value, Mapping):
            yield from ((f"{key}/{name}", x) for name, x in value.items() if isinstance(x, Mapping))
        elif key in _LIST and isinstance(value, list):
            yield from ((f"{key}/{i}", x) for i, x in enumerate(value) if isinstance(x, Mapping))
        elif key in _ONE and isinstance(value, Mapping):
            yield key, value


def _place(
    schema: Mapping[str, Any], problem: str, vocab: Vocab, ends: frozenset[int]
) -> tuple[str, str]:
    """The innermost part of a schema that is refused by itself for the same reason, as a JSON pointer; and the reason."""
    root = {k: schema[k] for k in ("$defs", "definitions", "$schema", "$id") if k in schema}
    said, where, looking = _reason(problem), "#", True
    while looking:
        looking = False
        for path, part in _parts(schema):
            try:
                guidance.grammar(lark({**root, **part}), vocab, ends)
            except guidance.Malformed as error:
                if _reason(str(error)) == said:
                    schema, where, looking = part, f"{where}/{path}", True
                    break
            except ValueError:
                continue
    return where, said


def _reason(problem: str) -> str:
    return (
        problem.partition("failed to compile JSON schema: ")[2].partition("\n   1 | ")[0] or problem
    )


def finite(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has a finite value, as far as references and what is required tell. What else stands in it counts as
    having one, so no schema is refused wrongly."""
    targets = {ref: _follow(schema, ref) for ref in _references(schema)}
    fruitful = {ref for ref, there in targets.items() if there is None}
    while more := {ref for ref in targets if ref not in fruitful and _ends(targets[ref], fruitful)}:
        fruitful |= more
    return _ends(schema, fruitful)


def _ends(schema: Any, fruitful: set[str]) -> bool:
    """Whether there is a finite value, where these references have one and the others have none."""
    if not isinstance(schema, Mapping):
        return True
    for key in ("anyOf", "oneOf"):
        options = _entries(schema.get(key))
        if options and not any(_ends(x, fruitful) for x in options):
            return False
    needed, known = _entries(schema.get("allOf")), schema.get("properties")
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
    ref = schema.get("$ref")
    return (not isinstance(ref, str) or ref in fruitful) and all(_ends(x, fruitful) for x in needed)


def _references(value: Any, depth: int = 0) -> set[str]:
    """All that is referred to, anywhere. Raises ValueError for a schema that is nested too deeply."""
    if depth > DEEPEST:
        raise ValueError(f"json_schema is nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return set[str]().union(*(_references(x, depth + 1) for x in value))
    if not isinstance(value, Mapping):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
    return own.union(*(_references(x, depth + 1) for x in value.values()))


def _follow(schema: Mapping[str, Any], ref: str) -> Any:
    """What a reference into this schema points to; None where that is not plain."""
    at: Any = schema if ref.startswith("#") else None
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def _entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
