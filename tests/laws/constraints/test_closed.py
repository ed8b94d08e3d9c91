"""Objects are closed where a schema names properties and speaks of no others; what must stay open does."""

import json

import jsonschema
import pytest
from test_exact import VOCAB, accepts

from polydec.laws.constraints.json_schema import JsonSchema

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
VALUES = [
    {},
    {"a": 1},
    {"a": 1, "c": 2},
    {"b": 1},
    {"a": 1, "b": 1},
    {"a": {"a": 1}},
    {"a": {"a": 1, "c": 2}},
    [{"a": 1}],
    [{"a": 1, "c": 2}],
    {"a": "x"},
    {"c": 1},
    3,
]


def allowed(schema):
    language = JsonSchema.of_schema(schema).token_language(VOCAB, VOCAB.eos)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    found = [value for value in VALUES if accepts(language, value)]
    assert all(map(valid, found)), [value for value in found if not valid(value)]
    return found


@pytest.mark.parametrize(
    ("schema", "shut_out"),
    [
        (A, {"a": 1, "c": 2}),
        ({"properties": {"a": A}}, {"a": {"a": 1, "c": 2}}),
        ({"type": "array", "items": A}, [{"a": 1, "c": 2}]),
        ({"anyOf": [A, {"type": "integer"}]}, {"a": 1, "c": 2}),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"a": 1, "c": 2}),
    ],
    ids=json.dumps,
)
def test_what_nobody_speaks_of_is_left_out(schema, shut_out):
    found = allowed(schema)
    assert shut_out not in found and jsonschema.Draft202012Validator(schema).is_valid(shut_out)
    assert [value for value in found if value not in ({}, [], 3)], "what is named stays"


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({**A, "additionalProperties": True}, {"a": 1, "c": 2}),
        ({"type": "object"}, {"c": 1}),
        ({**A, "required": ["a", "c"]}, {"a": 1, "c": 2}),
        ({"allOf": [A, B]}, {"a": 1, "b": 1}),
        ({"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}}, {"a": 1, "b": 1}),
        ({**A, "anyOf": [B, {"required": ["c"]}]}, {"a": 1, "b": 1}),
        ({**A, "required": ["a"], "minProperties": 2}, {"a": 1, "c": 2}),
    ],
    ids=json.dumps,
)
def test_what_somebody_may_mean_stays(schema, kept):
    assert kept in allowed(schema)


def test_a_part_of_one_of_stays_open_or_it_would_let_others_in():
    number = {"type": "number"}
    schema = {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {
            "a": {**A, "required": ["a"], "properties": {"a": number}},
            "b": {**B, "properties": {"b": number}},
        },
    }
    found = allowed(schema)
    assert {"a": 1, "b": 1} not in found, "both allow it"
    assert {"a": 1, "c": 2} in found and {"b": 1} in found


@pytest.mark.parametrize(
    ("schema", "fits", "too_large"),
    [
        ({"type": "integer"}, -(2**53) + 1, 2**53),
        ({"type": ["integer", "null"]}, None, -(10**17)),
        ({"type": "integer", "minimum": 3}, 4, 10**16),
        ({"type": "integer", "exclusiveMaximum": 3}, 2, -(10**16)),
    ],
    ids=json.dumps,
)
def test_an_integer_without_bounds_has_sixteen_digits(schema, fits, too_large):
    language = JsonSchema.of_schema(schema).token_language(VOCAB, VOCAB.eos)
    assert accepts(language, fits) and not accepts(language, too_large)
    assert jsonschema.Draft202012Validator(schema).is_valid(too_large), (
        "the schema itself allows it"
    )


@pytest.mark.parametrize(
    ("kind", "moment"), [("date-time", "2023-01-01T14:32:53{}Z"), ("time", "14:32:53{}+02:00")]
)
def test_a_second_has_nine_digits_behind_its_point(kind, moment):
    language = JsonSchema.of_schema({"type": "string", "format": kind}).token_language(
        VOCAB, VOCAB.eos
    )
    found = [accepts(language, moment.format(x)) for x in ("", ".5", ".123456789", ".1234567890")]
    assert found == [True, True, True, False] and not accepts(language, "now")
    own = JsonSchema.of_schema({"type": "string", "format": kind, "pattern": "[.]"}).token_language(
        VOCAB, VOCAB.eos
    )
    assert accepts(own, moment.format(".1234567890")) and not accepts(own, moment.format(""))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 10**17},
        {"type": "integer", "enum": [10**17]},
        {"type": "integer", "maximum": 10**18},
        {"type": "number"},
    ],
    ids=json.dumps,
)
def test_who_speaks_of_large_numbers_gets_them(schema):
    assert accepts(JsonSchema.of_schema(schema).token_language(VOCAB, VOCAB.eos), 10**17)
