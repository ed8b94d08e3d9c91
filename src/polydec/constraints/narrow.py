"""A schema that can be followed, in place of one that cannot.

What comes out allows the same values, or fewer, and never others: an answer that keeps to it keeps to the schema. So a keyword
that the grammar library lacks need not be refused where some of its values can be described without it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = Any
TYPES = ("object", "array", "string", "number", "boolean", "null")
SAYS_NOTHING = frozenset(
    {
        "title",
        "description",
        "$comment",
        "default",
        "examples",
        "$schema",
        "$id",
        "id",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    }
)
"""Of strings, those of the standard. Another one says nothing, by the standard."""
NARROWER = {
    "uri-reference": "uri",
    "uri-template": "uri",
    "iri": "uri",
    "iri-reference": "uri",
    "idn-email": "email",
    "idn-hostname": "hostname",
}
"""Formats that the grammar library lacks, each with one whose strings are all of it."""
DEEPEST = 40
"""References that are followed inside one another."""


def narrow(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that allows nothing that `schema` does not, with fewer of the keywords that are hard to follow."""
    return _Narrow(schema).one(schema, 0)


@dataclass(frozen=True)
class _Narrow:
    root: Mapping[str, Any]

    def one(self, schema: Schema, depth: int) -> Schema:
        """A schema and all that stands in it."""
        if not isinstance(schema, Mapping) or depth > DEEPEST * 4:
            return schema
        constant = self._chosen(schema)
        if constant is not None:
            return constant
        out, more = dict[str, Any](), list[Schema]()
        for key, value in schema.items():
            if key == "format":
                out |= {key: NARROWER.get(value, value)} if value in FORMATS else {}
                continue
            if key == "pattern" and isinstance(value, str):
                value = re.sub(
                    r"\\(.)", lambda m: m[1] if m[1] in "<>" else m[0], value, flags=re.DOTALL
                )
            if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(
                value, Mapping
            ):
                out[key] = {name: self.one(x, depth + 1) for name, x in value.items()}
            elif key in ("anyOf", "allOf", "prefixItems") and isinstance(value, list):
                out[key] = [self.one(x, depth + 1) for x in value]
            elif key in ("items", "additionalProperties"):
                out[key] = self.one(value, depth + 1)
            elif key == "oneOf" and isinstance(value, list):
                more.append({"anyOf": [self._alone(value, i, depth) for i in range(len(value))]})
            elif key == "not":
                more.append(self.without(value, depth + 1))
            elif key == "if":
                more.append(self._either(schema, depth))
            elif key in ("dependencies", "dependentRequired", "dependentSchemas") and isinstance(
                value, Mapping
            ):
                more += [self._dependent(name, x, depth) for name, x in value.items()]
            elif key not in ("then", "else", "uniqueItems", "contains"):
                out[key] = value
        self._arrays(schema, out, depth)
        names = schema.get("propertyNames")
        if (
            isinstance(names, Mapping)
            and "pattern" in names
            and set(names) <= {"pattern", "type", *SAYS_NOTHING}
            and not ({"properties", "patternProperties"} & set(schema))
        ):
            del out["propertyNames"]  # the names that fit are the only ones
            out["patternProperties"] = {names["pattern"]: out.get("additionalProperties", True)}
            out["additionalProperties"] = False
        known, most = out.get("properties", {}), out.get("maxProperties")
        if (
            out.get("additionalProperties") is False
            and "patternProperties" not in out
            and isinstance(known, Mapping)
            and isinstance(most, int)
            and len(known) <= most
        ):
            del out["maxProperties"]  # there cannot be more
        return {**out, "allOf": [*out.get("allOf", ()), *more]} if more else out

    def _chosen(self, schema: Mapping[str, Any]) -> Schema | None:
        """Of a schema that lists its values, itself or in a part, those that it allows; None where it lists none, or that
        cannot be told."""
        listed = next(
            (
                x
                for x in (
                    schema,
                    *(p for p in _list(schema.get("allOf")) if isinstance(p, Mapping)),
                )
                if isinstance(x.get("enum"), list) or "const" in x
            ),
            None,
        )
        if listed is None or set(schema) <= {"enum", "const", "type", *SAYS_NOTHING}:
            return None
        try:
            from jsonschema import Draft202012Validator
            from jsonschema.validators import validator_for

            kind: Any = validator_for(self.root, default=Draft202012Validator)
            checker: Any = kind(self.root).evolve(schema=schema)
            values = listed["enum"] if isinstance(listed.get("enum"), list) else [listed["const"]]
            return {"enum": [x for x in values if checker.is_valid(x)]}
        except Exception:  # not installed, or a reference that cannot be followed: nothing is known
            return None

    def without(self, schema: Schema, depth: int) -> Schema:
        """Values that a schema does not allow: some of them, or False where none can be described."""
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return False
        ways = list[Schema]()
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                ways.append(self.without(self._follow(value), depth + 1))
            elif key == "type":
                named = [value] if isinstance(value, str) else _list(value)
                left = [
                    x
                    for x in TYPES
                    if x not in named and not (x == "number" and "integer" in named)
                ]
                ways.append({"type": left} if left else False)
            elif key == "required":
                ways += [{"type": "object", "properties": {name: False}} for name in _list(value)]
            elif key == "not":
                ways.append(self.one(value, depth + 1))
            elif key == "anyOf":
                ways.append({"allOf": [self.without(x, depth + 1) for x in _list(value)]})
            elif key == "allOf":
                ways += [self.without(x, depth + 1) for x in _list(value)]
            elif key in (
                "minimum",
                "maximum",
                "exclusiveMinimum",
                "exclusiveMaximum",
            ) and not isinstance(value, bool):
                ways.append({"type": "number", _OPPOSITE[key]: value})
            elif key == "minLength" and isinstance(value, int) and value > 0:
                ways.append({"type": "string", "maxLength": value - 1})
            elif key == "maxLength" and isinstance(value, int):
                ways.append({"type": "string", "minLength": value + 1})
            elif key == "enum" or key == "const":
                used = {_type(x) for x in (_list(value) if key == "enum" else [value])}
                left = [x for x in TYPES if x not in used]
                ways.append({"type": left} if left else False)
                if "string" in used:  # a string that is longer than all of them
                    longest = max(
                        len(x)
                        for x in (_list(value) if key == "enum" else [value])
                        if isinstance(x, str)
                    )
                    ways.append({"type": "string", "minLength": longest + 1})
            elif key == "properties" and isinstance(value, Mapping):
                ways += [
                    {
                        "type": "object",
                        "properties": {name: self.without(x, depth + 1)},
                        "required": [name],
                    }
                    for name, x in value.items()
                ]
        ways = [x for x in ways if x is not False]
        return ways[0] if len(ways) == 1 else {"anyOf": ways} if ways else False

    def _alone(self, options: list[Schema], i: int, depth: int) -> Schema:
        """What the i-th of some schemas allows and no other one does."""
        others = [self.without(x, depth + 1) for j, x in enumerate(options) if j != i]
        return {"allOf": [self.one(options[i], depth + 1), *others]}

    def _either(self, schema: Mapping[str, Any], depth: int) -> Schema:
        yes = {
            "allOf": [
                self.one(schema["if"], depth + 1),
                self.one(schema.get("then", True), depth + 1),
            ]
        }
        no = {
            "allOf": [
                self.without(schema["if"], depth + 1),
                self.one(schema.get("else", True), depth + 1),
            ]
        }
        return {"anyOf": [yes, no]}

    def _dependent(self, name: str, needs: Schema, depth: int) -> Schema:
        """What holds where an object has a property: names that it then has as well, or a schema."""
        then = {"required": needs} if isinstance(needs, list) else self.one(needs, depth + 1)
        return {"anyOf": [{"properties": {name: False}}, then]}

    def _arrays(self, schema: Mapping[str, Any], out: dict[str, Any], depth: int) -> None:
        """Items that differ: at most one item. Items of which one is so: all of them are, and there is one."""
        if schema.get("uniqueItems") is True and schema.get("items") is not False:
            out["maxItems"] = min(1, schema.get("maxItems", 1))
        if "contains" not in schema:
            return
        if {"prefixItems", "minContains", "maxContains"} & set(schema) or isinstance(
            schema.get("items"), list
        ):
            out["contains"] = schema["contains"]
            return
        both = [self.one(schema["contains"], depth + 1), out.get("items", True)]
        out["items"] = {"allOf": both} if False not in both else False
        out["minItems"] = max(1, schema.get("minItems", 0))

    def _follow(self, ref: str) -> Schema:
        """What a reference into this schema points to; True where that is not plain."""
        at: Any = self.root if ref.startswith("#") else True
        for part in ref[1:].split("/")[1:]:
            at = (
                at.get(part.replace("~1", "/").replace("~0", "~"), True)
                if isinstance(at, Mapping)
                else True
            )
        return at


_OPPOSITE = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type(value: Any) -> str:
    kinds = {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "array",
        dict: "object",
    }
    return kinds.get(type(value), "null")
