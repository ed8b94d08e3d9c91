"""Regular expressions and JSON schemas as automata over bytes: what matches, and what is refused."""

import json
import random
import re

import jsonschema
import pytest

from polydec.base.errors import RequestError
from polydec.laws.constraints import byte_automaton
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.constraints.byte_automaton import compile_expression
from polydec.laws.constraints.expressions import parse_expression
from polydec.laws.constraints.json_expressions import digits_between
from polydec.laws.constraints.json_schema import JsonSchema
from polydec.laws.constraints.regex import Regex


def automaton(constraint):
    return compile_expression(constraint.regular_expression(), "constraint")


EXPRESSIONS = {
    r"a|b*c": None,
    r"[a-c]{2,3}x??": None,
    r"(?:ab|a)*b": None,
    r"(?P<n>a)(?<m>b)?": r"ab?",
    r"[^\x00-\x{7f}]": r"[^\x00-\x7f]",
    r"[a-z&&[^b-y]]+": r"[az]+",
    r"[[:digit:][:^ascii:]-]+": "[0-9\x80-\U0010ffff-]+",
    r".{0,3}": None,
    r"\d\u{e9}|\W": r"\dé|\W",
    r"x{0}": None,
    r"(a|b)*abb": None,
    r"[]a]+\.": r"[\]a]+\.",
    r"\s|\S{2}": None,
}
"""Of each its meaning as Python has it; None: the same text."""


@pytest.mark.parametrize("pattern", EXPRESSIONS)
def test_what_matches(pattern):
    made = compile_expression(parse_expression(pattern), "regex")
    wanted = re.compile(EXPRESSIONS[pattern] or pattern)
    dice = random.Random(0)
    matched = 0
    for _ in range(900):
        text = "".join(
            dice.choice("aaabbbcxz0-].é\n߿ࠀ𐀀\ud7ff\ue000 ") for _ in range(dice.randint(0, 4))
        )
        matches = made.matches_bytes(text.encode())
        assert matches == (wanted.fullmatch(text) is not None), (pattern, text)
        matched += matches
    assert 0 < matched < 900


@pytest.mark.parametrize(
    "pattern, why",
    [
        ("a{3", "no closing brace at character 4"),
        ("(a", "a group is not closed"),
        ("a)", "unopened group at character 2"),
        ("[a", "ends in the middle"),
        ("*a", "nothing to repeat at character 1"),
        ("a{3,2}", "goes from 3 to 2"),
        ("a{99999}", "at most 10000"),
        ("{", "nothing to repeat"),
        ("^a", "an anchor is not supported"),
        (r"\bx", r"\b is not supported at character 2"),
        (r"\p{L}", r"\p is not supported"),
        ("(?=x)", "look-around are not supported"),
        ("(?i)x", "flags and look-around"),
        ("[[:foo:]]", "no class is called 'foo'"),
        ("[b-a]", "ends before it begins"),
        ("[a--b]", "(--) is not supported"),
        (r"\x{110000}", "is no code point"),
        ("(" * 300 + ")" * 300, "more than 200 deep"),
    ],
)
def test_what_is_refused(pattern, why):
    with pytest.raises(RequestError, match=re.escape(why)):
        parse_expression(pattern)


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "(a|b)*a(a|b){14}", "[ab]{9000}"])
def test_what_is_too_large_is_refused_soon(pattern, monkeypatch):
    monkeypatch.setattr(byte_automaton, "MOST_WORK", 100_000)
    monkeypatch.setattr(byte_automaton, "MOST_NODES", 20_000)
    with pytest.raises(RequestError, match="its automaton has more than"):
        compile_expression(parse_expression(pattern), "regex")


def test_equal_states_are_put_together():
    assert len(automaton(Regex("(aa|ab|ba|bb)*")).accepts_S) == 2
    assert len(automaton(AnyOf(("cat", "bat", "hat"))).accepts_S) == 4


def test_texts_of_a_choice():
    made = automaton(AnyOf(("a.b", "Kyoto", "é")))
    assert all(made.matches_bytes(x.encode()) for x in ("a.b", "Kyoto", "é"))
    assert not made.matches_bytes(b"axb") and not made.matches_bytes(b"Kyot")


@pytest.mark.parametrize("low, high", [(0, 0), (0, 120), (7, 1234), (99, 101), (350, 350), (5, 9)])
def test_ranges_of_integers(low, high):
    made = compile_expression(digits_between(low, high), "range")
    for n in range(0, 2000):
        assert made.matches_bytes(str(n).encode()) == (low <= n <= high)
    assert not made.matches_bytes(b"007")


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": -5, "exclusiveMaximum": 120},
        "town": {"enum": ["Kyoto", "Hull", 7, None]},
        "at": {"type": "string", "format": "date"},
    },
    "required": ["age"],
}
SCHEMAS = [
    PERSON,
    {"type": "array", "items": {"type": "integer", "minimum": 8, "maximum": 12}, "maxItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
    {"type": ["null", "number"]},
    {"type": "number", "minimum": 2, "maximum": 11},
    {"anyOf": [{"type": "string", "pattern": "^a+$"}, {"const": {"b": [1, "é"]}}]},
    {"type": "string", "pattern": '^"\\\\?\\d'},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "object", "properties": {"p": {"$ref": "#/$defs/q"}}, "$defs": {"q": {"const": 3}}},
    {
        "type": "array",
        "prefixItems": [{"const": 1}, {"type": "null"}],
        "minItems": 2,
        "items": False,
    },
    {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    {"allOf": [{"enum": ["on", "off"]}]},
]


def drawn_text(made, dice):
    """A text of an automaton, by chance, that ends soon."""
    out = bytearray()
    state = 0
    size = len(made.accepts_S)
    while not (made.accepts_S[state] and (dice.random() < 0.3 or len(out) > 80)):
        open_bytes = [b for b in range(256) if made.next_SB[state, b] < size]
        if not open_bytes:
            break
        out.append(dice.choice(open_bytes))
        state = int(made.next_SB[state, out[-1]])
        if len(out) > 400:
            return None
    return bytes(out)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_texts_of_a_schema_are_its_values(schema):
    made = automaton(JsonSchema.of_schema(schema))
    dice = random.Random(1)
    seen = 0
    for _ in range(60):
        text = drawn_text(made, dice)
        if text is not None:
            jsonschema.validate(json.loads(text), schema)
            seen += 1
    assert seen > 30


VALUES = [
    *(None, True, False, 0, 1, 2, 3.5, 11, 12, -5, 120, 119, "a", "aaa", 'x"5', '"\\7', "on", "éé"),
    *([], [8], [8, 12, 9], [8, 12, 9, 9], [True, False], [True], [1, None], [1], {"b": [1, "é"]}),
    *({"age": 3}, {"name": "Eva", "age": -5, "town": None}, {"age": 120}, {"town": 7}, {"p": 3}),
    *({"age": 7, "at": "2024-02-29"}, {"age": 7, "at": "2023-02-29"}, {"x": 1, "y": 2}, {"y": 2}),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_values_of_a_schema_are_among_its_texts(schema):
    closed = schema if "properties" not in schema else {**schema, "additionalProperties": False}
    made = automaton(JsonSchema.of_schema(schema))
    checker = jsonschema.Draft202012Validator(
        closed, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for value in VALUES:
        for separators in ((",", ":"), (", ", ": ")):
            text = json.dumps(value, ensure_ascii=False, separators=separators)
            listed = separators[0] == ", " and "anyOf" in schema  # constants have one spelling
            if not listed:
                assert made.matches_bytes(text.encode()) == checker.is_valid(value), text


def test_a_pattern_is_found_anywhere():
    made = automaton(JsonSchema.of_schema({"type": "string", "pattern": '"\\d'}))
    for value in ('x"5y', '"5', "5", 'x"', 'x\n"7'):
        assert made.matches_bytes(json.dumps(value).encode()) == bool(re.search('"\\d', value))


def test_white_space_can_be_left_out():
    schema = {**SCHEMAS[1], "x-guidance": {"whitespace_flexible": False}}
    made = automaton(JsonSchema.of_schema(schema))
    assert made.matches_bytes(b"[8,9]") and not made.matches_bytes(b"[8, 9]")


@pytest.mark.parametrize(
    "schema, why",
    [
        ({"type": "object"}, "at #: an object of any names has no bound"),
        ({"type": "array"}, "at #/items: a value of any kind has no bound"),
        ({"properties": {"a": {}}}, "at #: a value without a type"),
        ({"not": {"type": "null"}}, "at #: not is not supported"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf is not supported"),
        ({"type": "number", "minimum": 0.5}, "whole numbers are supported"),
        ({"type": "number", "minimum": -1, "maximum": 2}, "a number has no bounds, or whole ones"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "one at a time"),
        ({"type": "string", "pattern": "^a|b$"}, "an anchor beside alternatives"),
        ({"type": "string", "pattern": "^[(]a|b$"}, "an anchor beside alternatives"),
        ({"type": "string", "format": "regex"}, "format regex is not supported"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength is 3"),
        ({"anyOf": [{"type": "null"}], "maxLength": 3}, "anyOf is supported by itself"),
        ({"enum": [1], "type": "string"}, "no value of the list is of the type"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer lies from 3 to 2"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
            },
            "at #/items: #/$defs/a needs itself again",
        ),
    ],
    ids=str,
)
def test_schemas_that_are_refused(schema, why):
    with pytest.raises(RequestError, match=re.escape(why)) as said:
        JsonSchema.of_schema(schema).regular_expression()
    assert len(str(said.value)) <= 300
