"""Narrowed schemas allow nothing that the schema does not: against jsonschema, and on the conformance tests of JSON Schema."""

import gzip
import json
import os
from pathlib import Path

import jsonschema
import pytest

from polydec.constraints.finite import finite
from polydec.constraints.guidance import grammar
from polydec.constraints.json_lark import lark
from polydec.constraints.json_schema import JsonSchema
from polydec.constraints.narrow import narrow
from polydec.core.types import Vocab
from polydec.testing.toy import Letters

DATA = (
    Path(os.environ.get("POLYDEC_DATA", "../shared/data"))
    / "json_schema_test_suite"
    / "groups_a.jsonl.gz"
)
BYTES = tuple(chr(i) for i in range(32, 127))
VOCAB = Vocab(
    len(BYTES) + 1, frozenset({len(BYTES)}), words=Letters((*BYTES, "$"), frozenset({len(BYTES)}))
)
END = len(BYTES)

SCHEMAS = [
    {"not": {"type": "string"}},
    {"not": {"type": ["integer", "null", "array"]}},
    {"not": {"required": ["a"]}},
    {"not": {"not": {"type": "integer"}}},
    {"not": {"anyOf": [{"type": "object"}, {"minimum": 3}]}},
    {"not": {"maximum": 3}},
    {"not": {"type": "string", "minLength": 2}},
    {"not": {"enum": [1, "a"]}},
    {"not": {"properties": {"a": {"type": "string"}}}},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    {"type": "array", "contains": {"type": "string"}},
    {"dependencies": {"a": ["b"]}, "type": "object"},
    {"dependentSchemas": {"a": {"required": ["b"]}}, "type": "object"},
    {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}},
    {"type": "string", "format": "of-no-standard"},
    {"allOf": [{"enum": [1, 2, "a", {"b": 1}]}, {"not": {"type": "integer"}}]},
    {"enum": [1, 2, 3], "not": {"maximum": 2}},
    {"type": "string", "not": {"enum": ["", "ab"]}},
    {"type": "object", "propertyNames": {"pattern": "^[ab]$"}},
    {"propertyNames": {"pattern": "a"}, "additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {"$ref": "#/$defs/x", "$defs": {"x": {"not": {"type": "object"}}}},
]
VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    4,
    -1,
    2.5,
    "",
    "a",
    "ab",
    "abc",
    [],
    [1],
    [1, 1],
    [1, 2],
    ["a"],
    [1, "a"],
    {},
    {"a": 1},
    {"a": "x"},
    {"b": 1},
    {"a": 1, "b": 2},
    {"a": "x", "b": 1},
    {"c": 0},
]


def accepts(language, value):
    state = language.start()
    for x in VOCAB.words.encode(json.dumps(value, separators=(",", ":")), special=False):
        if not language.allows(state, x):
            return False
        state = language.step(state, x)
    return language.allows(state, END)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_nothing_is_allowed_that_the_schema_does_not_allow_and_something_is(schema):
    language = grammar(lark(narrow(schema)), VOCAB, VOCAB.eos)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    found = [value for value in VALUES if accepts(language, value)]
    assert found and all(map(valid, found)), [value for value in found if not valid(value)]
    assert [v for v in VALUES if accepts(JsonSchema.of(schema).language(VOCAB, VOCAB.eos), v)], (
        "it was refused all the same"
    )


def test_what_cannot_be_described_is_refused_and_named():
    for schema, key in (
        ({"not": {"pattern": "a"}}, "not"),
        ({"propertyNames": {"minLength": 2}}, "propertyNames"),
        ({"type": "string", "format": "json-pointer"}, "json-pointer"),
    ):
        with pytest.raises(ValueError, match=key):
            JsonSchema.of(schema).language(VOCAB, VOCAB.eos)


def test_a_format_that_the_library_lacks_is_narrowed_to_one_that_it_has():
    language = JsonSchema.of({"type": "string", "format": "iri-reference"}).language(
        VOCAB, VOCAB.eos
    )
    assert accepts(language, "https://a.example/b") and not accepts(language, "a b")


def test_a_backslash_before_a_bracket_means_the_bracket():
    language = JsonSchema.of({"type": "string", "pattern": r"^\\?\<[a-z]\>$"}).language(
        VOCAB, VOCAB.eos
    )
    assert accepts(language, "<a>") and accepts(language, "\\<a>") and not accepts(language, "a")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="needs json_schema_test_suite (POLYDEC_DATA)")
def test_conformance_tests_that_are_invalid_are_not_allowed():
    seen = 0
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for group in map(json.loads, lines):
            schema = group["schema"]
            if (
                not isinstance(schema, dict)
                or "format" in group["file"]
                or not finite(schema)
                or narrow(schema) == schema
            ):
                continue
            try:
                language = grammar(lark(narrow(schema)), VOCAB, VOCAB.eos)
            except ValueError:
                continue
            for test in group["tests"]:
                if not test["valid"]:
                    assert not accepts(language, test["data"]), (schema, test)
                    seen += 1
    assert seen > 50
