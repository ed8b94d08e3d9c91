"""A schema in other words, where the grammar library lacks some of its keywords: the same values, or a refusal by name.

A schema becomes cells (see `cells`): lists of values of one kind, each with what its parts must fit and must not. `not`, `if`,
`oneOf` and their like are then set operations, which leave nothing out and let nothing in. What comes out uses the library's
keywords alone. Where that cannot be said (a text that does not match an expression, lists of any texts that all differ) the
schema is refused, with the keyword and its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polydec.laws.constraints.cases import SchemaReader
from polydec.laws.constraints.cell_schemas import SchemaWriter


def rewrite_schema_exactly(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite a schema without the keywords that the grammar library lacks.

    Args:
        schema: A JSON schema.

    Returns:
        A schema of the same values.

    Raises:
        InexactSchemaError: That cannot be said, or takes too much.
    """
    return SchemaWriter(SchemaReader(schema)).write_schema()
