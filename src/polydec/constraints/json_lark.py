"""A JSON schema's values, as a part of a grammar in llguidance's form of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SPACE = r" ?|\n {0,20}"
"""White space between the parts of a value: a space at most, or a line break with an indent of at most 20. More of it says
nothing, and a small model would not come to an end of it."""

START = "start: "


def lark(schema: Mapping[str, Any]) -> str:
    """The grammar of a schema's values, as llguidance reads it."""
    return START + values(schema)


def values(
    schema: Mapping[str, Any],
    spaced: Mapping[str, Any] = MappingProxyType({"whitespace_pattern": SPACE}),
) -> str:
    """A schema's values, as a part of such a grammar; spaced: how, where the schema does not say."""
    own = schema.get("x-guidance")
    guided = {**spaced, **(own if isinstance(own, Mapping) else {})}
    return f"%json {json.dumps({**schema, 'x-guidance': guided})}"
