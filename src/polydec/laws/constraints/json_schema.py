"""A JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polydec.base.edge import error_sentence, parse_object, whole_text
from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints import guidance
from polydec.laws.constraints.expressions import Expression
from polydec.laws.constraints.json_expressions import schema_expression
from polydec.laws.constraints.json_lark import START

LONGEST = 4_000_000
"""Characters of a schema."""


@dataclass(frozen=True)
class JsonSchema:
    """The answer is a JSON value that a schema (its JSON text) allows. Properties stand in the
    order of the schema, and where it names some and says nothing of others, there are no others
    (see `closed`).

    What the grammar library lacks is said in other words (see `exact`), and where that cannot be
    done the keyword is refused, with its place: nothing is left out for that. Numbers are kept to
    exactly, or refused (see `bounded`). The keys of `x-guidance` in a schema (llguidance's own:
    separators, white space) are followed.
    """

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise RequestError(
                f"json_schema has {len(self.text)} characters: it may have {LONGEST}"
            )
        parse_object(whole_text(self.text, "json_schema"), "json_schema")

    @staticmethod
    def of_schema(schema: Mapping[str, Any]) -> JsonSchema:
        """Of a schema that has been read already. Raises RequestError for what is no JSON."""
        try:
            return JsonSchema(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(
                error_sentence(f"json_schema is not a JSON object: {error}")
            ) from None

    def regular_expression(self) -> Expression:
        """The values as a regular expression. Raises RequestError, with the place, where none says them."""
        return schema_expression(parse_object(self.text, "json_schema"))

    def token_language(
        self, vocab: TokenVocabulary, ends: frozenset[int]
    ) -> guidance.GrammarLanguage:
        """Compile the schema for a vocabulary.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The language.

        Raises:
            RequestError: The schema is malformed, cannot be followed exactly, or holds no value.
        """
        return guidance.compile_language("json_schema", self.text, "json_schema", vocab, ends)

    def followed_schema(self, vocab: TokenVocabulary, ends: frozenset[int]) -> Mapping[str, Any]:
        """Read the schema as it is followed: closed, in other words where need be, with its own
        `x-guidance` alone.

        Args:
            vocab: The vocabulary, with its tokenizer.
            ends: Token ids that may end an answer, at least one.

        Returns:
            The schema.

        Raises:
            RequestError: It cannot be followed.
        """
        # The compiled grammar is the schema behind a prefix; the options that were added are taken
        # out again.
        schema = json.loads(self.token_language(vocab, ends).lark.removeprefix(f"{START}%json "))
        own = parse_object(self.text, "json_schema").get("x-guidance")
        del schema["x-guidance"]
        if own is None:
            return schema
        return {**schema, "x-guidance": own}


ANY_OBJECT = JsonSchema(
    '{"type": "object", "minProperties": 1, "x-guidance": {"whitespace_flexible": false, "whitespace_pattern": null}}'
)
"""Any JSON object that says something, without white space between its parts: what OpenAI's
response_format calls json_object. A model that sees nothing of the constraint would often write {}
or spaces.
"""
