"""A JSON schema's values, as a part of a grammar in llguidance's form of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SPACE = r" ?|\n {0,20}"
"""White space between the parts of a value: a space at most, or a line break with an indent of at
most 20. More of it says nothing, and a small model would not come to an end of it.
"""

START = "start: "

ESCAPES = 'nrbtf\\"u'
"""Letters that may follow a backslash in a text, as the library has them: u for a character by its
number.
"""


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of a schema's values, as llguidance reads it."""
    return START + json_values_rule(schema)


def json_values_rule(
    schema: Mapping[str, Any],
    spaced: Mapping[str, Any] = MappingProxyType({"whitespace_pattern": SPACE}),
) -> str:
    """Write a schema's values as a part of such a grammar.

    Args:
        schema: A JSON schema.
        spaced: The library's options of white space, where the schema says none. Default: a space
            or a line break with an indent.

    Returns:
        The rule.
    """
    own = schema.get("x-guidance")
    guided = {**spaced, **(own if isinstance(own, Mapping) else {})}
    escapes = guided.get("json_allowed_escapes", ESCAPES)
    # A name spelled by character numbers would pass as another name, so \u is not allowed there.
    if isinstance(escapes, str) and _open_beside_names(schema):
        guided = {**guided, "json_allowed_escapes": escapes.replace("u", "")}
    return f"%json {json.dumps({**schema, 'x-guidance': guided})}"


def _open_beside_names(schema: Any) -> bool:
    """Whether a schema has objects with names of their own and others besides, anywhere. A name
    that is spelled by the numbers of its characters would pass there as another one, so numbers are
    not allowed.
    """
    if isinstance(schema, list):
        return any(map(_open_beside_names, schema))
    if not isinstance(schema, Mapping):
        return False
    names = ("properties", "patternProperties", "required")
    if any(schema.get(x) for x in names) and schema.get("additionalProperties") is not False:
        return True
    return any(map(_open_beside_names, schema.values()))
