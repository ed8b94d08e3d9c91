"""Is an answer under a constraint what it should be? Judged by other means than those that kept the
answer to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.regex import Regex
from polydec.laws.constraints.span_of import SpanOf


def is_valid_text(constraint: Any, text: str) -> bool | None:
    """Whether a constraint allows a finished text, judged by other means than the constraint's own
    machine.

    Args:
        constraint: The request's constraint.
        text: The finished text.

    Returns:
        None where nothing here can say: a grammar, a plug-in's kind, a pattern that Python reads in
        another way, or a schema without the package jsonschema.
    """
    judge = _JUDGES.get(type(constraint))
    if judge is None:
        return None
    return judge(constraint, text)


def _matches(constraint: Regex, text: str) -> bool | None:
    try:
        return re.fullmatch(constraint.pattern, text) is not None
    # A pattern of the constraint's own dialect, or one that Python's engine cannot follow.
    except (re.error, RecursionError):
        return None


def _follows(constraint: JsonSchema, text: str) -> bool | None:
    try:
        # A finished answer that is no JSON is invalid, whatever the schema says.
        value = json.loads(text)
    except ValueError:
        return False
    try:
        from jsonschema import Draft202012Validator, SchemaError
    except ImportError:
        return None
    try:
        return Draft202012Validator(json.loads(constraint.text)).is_valid(value)
    except (SchemaError, ValueError):
        return None


def _is_among(constraint: AnyOf, text: str) -> bool:
    return text in constraint.texts


def _lies_in(constraint: SpanOf, text: str) -> bool:
    return text.strip() in constraint.text


_JUDGES: dict[type, Callable[[Any, str], bool | None]] = {
    Regex: _matches,
    JsonSchema: _follows,
    AnyOf: _is_among,
    SpanOf: _lies_in,
}
