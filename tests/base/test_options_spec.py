"""Options: what is declared once is checked, said and turned into a schema."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polydec.base.options import (
    LARGEST,
    AtLeast,
    AtMost,
    EntryCount,
    GreaterThan,
    InRange,
    LessThan,
    OneOf,
    Option,
    ValueNote,
    as_text,
    callable_options,
    option_from_annotation,
    short_repr,
)


def build(
    kit,
    *,
    depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 2,
    floor: Annotated[
        float, GreaterThan(0), AtMost(1), ValueNote("1 keeps all"), "least chance"
    ] = 0.5,
    cost: Annotated[float | None, AtLeast(0), LessThan(1), "price"] = None,
    hot: Annotated[bool, "keep the table"] = False,
    kind: Annotated[str, OneOf("exact", "match"), "how to verify"] = "exact",
    skip: Annotated[str | None, "layers left out"] = None,
    levels: Annotated[tuple[int, ...], InRange(1, 16), EntryCount(1, 16), "children"] = (2, 1, 1),
    shape: Annotated[tuple[int, ...] | None, InRange(0, 64), "child counts"] = None,
    nodes: Annotated[int, AtLeast(1), "tokens"] | None = None,
    bias: Annotated[Mapping[int, float] | None, InRange(-100, 100), "bias of tokens"] = None,
):
    return kit


OPTIONS = {o.name: o for o in callable_options(build)}


def test_read_takes_what_stands_behind_the_star():
    assert list(OPTIONS) == [
        "depth",
        "floor",
        "cost",
        "hot",
        "kind",
        "skip",
        "levels",
        "shape",
        "nodes",
        "bias",
    ]
    assert OPTIONS["depth"] == Option("depth", int, 2, "tokens drafted a pass", (InRange(0, 64),))
    assert [o.kind for o in OPTIONS.values()] == [
        int,
        float,
        float,
        bool,
        str,
        str,
        tuple,
        tuple,
        int,
        Mapping,
    ]
    assert [o.name for o in OPTIONS.values() if o.optional] == [
        "cost",
        "skip",
        "shape",
        "nodes",
        "bias",
    ]


def test_a_dataclass_is_read_too():
    @dataclass
    class Fields:
        top_k: Annotated[int, AtLeast(-1), "tokens kept"] = 0

    assert [o.name for o in callable_options(Fields)] == ["top_k"]


@pytest.mark.parametrize(
    "name, given_, want",
    [
        ("depth", "7", 7),
        ("depth", " 7 ", 7),
        ("depth", 7, 7),
        ("depth", 7.0, 7),
        ("depth", "+7", 7),
        ("floor", "0.5", 0.5),
        ("floor", ".5", 0.5),
        ("floor", 1, 1.0),
        ("floor", "1e-3", 1e-3),
        ("cost", "none", None),
        ("cost", None, None),
        ("cost", 0, 0.0),
        ("hot", "Yes", True),
        ("hot", "0", False),
        ("hot", True, True),
        ("kind", "match", "match"),
        ("skip", "3,5a", "3,5a"),
        ("skip", "none", None),
        ("levels", "3,2", (3, 2)),
        ("levels", [3, 2.0], (3, 2)),
        ("shape", "", ()),
        ("shape", None, None),
        ("nodes", "9", 9),
        ("bias", "5:1.5,7:-2", {5: 1.5, 7: -2.0}),
        ("bias", {"5": 1}, {5: 1.0}),
        ("bias", {5: 1.0}, {5: 1.0}),
    ],
)
def test_values_become_what_the_option_is(name, given_, want):
    got = OPTIONS[name].convert_value(given_)
    assert got == want and type(got) is type(want)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("depth", 65, "depth is 65: it must lie in 0 to 64"),
        ("depth", "65", "depth is 65: it must lie in 0 to 64"),
        ("depth", "1_0", "depth is '1_0': it must be a whole number, in 0 to 64"),
        ("depth", True, "depth is True: it must be a whole number"),
        ("depth", 1.5, "depth is 1.5: it must be"),
        ("depth", "٣", "it must be a whole number"),
        ("depth", None, "depth is None: it must be a whole number"),
        ("depth", "9" * 10_000, "it must be a whole number"),
        ("depth", 10**10_000, "depth is of type int and cannot be shown: it"),
        (
            "nodes",
            10**30,
            "nodes is 1000000000000000000000000000000: it must be a whole number, at least 1, or none",
        ),
        ("floor", 0, "floor is 0.0: it must be a number, above 0 and at most 1 (1 keeps all)"),
        ("floor", "nan", "floor is 'nan': it must be a number"),
        ("floor", math.inf, "floor is inf: it must be a number"),
        ("floor", "1e999", "it must be a number"),
        ("floor", 10**400, "it must be a number"),
        ("floor", "0." + "0" * 10_000 + "1", "it must be a number"),
        ("floor", True, "floor is True: it must be a number"),
        ("cost", 1, "cost is 1.0: it must be a number, at least 0 and below 1, or none"),
        ("hot", 1, "hot is 1: it must be true or false"),
        ("hot", "maybe", "hot is 'maybe': it must be true or false"),
        ("kind", "exakt", "kind is 'exakt': it must be one of exact, match; did you mean exact?"),
        ("kind", 3, "kind is 3: it must be a word"),
        ("skip", "a\x1b[31m", r"skip is 'a\x1b[31m': it must be a word, or none"),
        (
            "levels",
            "2,0",
            "levels is 2,0: it must be whole numbers such as 2,1,1, each in 1 to 16, 1 to 16 of them",
        ),
        ("levels", "2;1", "levels is '2;1': it must be whole"),
        ("levels", (), "levels is (): it must be whole"),
        ("levels", ["2"], "levels is ['2']: it must be whole"),
        ("levels", (1,) * 99, "levels is 1,1,1,1,1,1,1,1,1,…: it must"),
        ("levels", "1," * 10**6, "it must be whole"),
        ("bias", {5: 101}, "bias is {5: 101.0}: it must"),
        ("bias", {-1: 1}, "bias is {-1: 1}"),
        ("bias", {5: True}, "it must be"),
        ("bias", "5", "bias is '5'"),
        ("bias", {5: 1, "5": 2}, "it must be numbers"),
        ("bias", {5: math.nan}, "it must be numbers"),
    ],
    ids=short_repr,
)
def test_one_clear_sentence(name, value, message):
    with pytest.raises(ValueError) as e:
        OPTIONS[name].convert_value(value)
    said = str(e.value)
    assert message in said and len(said) <= 300 and said.isprintable()


def test_spoken():
    assert OPTIONS["depth"].spoken == "a whole number, in 0 to 64; default 2: tokens drafted a pass"
    assert (
        OPTIONS["cost"].spoken == "a number, at least 0 and below 1, or none; default none: price"
    )
    assert OPTIONS["hot"].spoken == "true or false; default false: keep the table"
    assert OPTIONS["levels"].spoken.startswith(
        "whole numbers such as 2,1,1, each in 1 to 16, 1 to 16 of them; default 2,1,1:"
    )


def test_schema():
    assert OPTIONS["depth"].json_schema() == {
        "type": "integer",
        "minimum": 0,
        "maximum": 64,
        "default": 2,
        "description": "tokens drafted a pass",
    }
    assert OPTIONS["floor"].json_schema() == {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "default": 0.5,
        "description": "least chance (1 keeps all)",
    }
    assert OPTIONS["cost"].json_schema()["anyOf"] == [
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "null"},
    ]
    assert OPTIONS["kind"].json_schema()["enum"] == ["exact", "match"]
    assert OPTIONS["levels"].json_schema()["items"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 16,
    }
    assert OPTIONS["levels"].json_schema()["maxItems"] == 16
    assert all(json.dumps(o.json_schema()) for o in OPTIONS.values())


@pytest.mark.parametrize(
    "hint, default, message",
    [
        (Annotated[int, InRange(0, 64)], 3, "needs a default and a line of help"),
        (int, 3, "a line of help: Annotated[int, InRange(0, 64), "),
        (
            Annotated[int, InRange(0, 64), "help"],
            65,
            "the default of an option is not legal: x is 65",
        ),
        (Annotated[bytes, "help"], b"", "is of type <class 'bytes'>"),
        (Annotated[bytes, "help"], b"", "tuple[str, ...], CommaList, MultilineText, "),
        (Annotated[int, "help"], None, "the default of an option is not legal"),
    ],
)
def test_a_declaration_that_is_not_whole(hint, default, message):
    with pytest.raises(TypeError) as e:
        option_from_annotation("x", hint, default)
    assert message in str(e.value)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=200)
    | st.binary(max_size=9)
    | st.integers(-5, 70)
    | st.floats(-1, 2)
    | st.integers(-5, 70).map(str)
    | st.floats().map(str)
    | st.sampled_from([math, float, "1" * 10_000])
    | st.just(5000).map(lambda n: 10**n),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.integers(-2, 9) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(OPTIONS)), ANYTHING)
@example(next(name for name in sorted(OPTIONS) if OPTIONS[name].kind is float), 10**5000)
@settings(max_examples=400)
def test_anything_is_taken_or_refused_in_a_sentence(name, value):
    o = OPTIONS[name]
    try:
        got = o.convert_value(value)
    except ValueError as e:
        assert str(e).startswith(f"{name} is ") and len(str(e)) <= 300 and str(e).isprintable()
        return
    assert o.convert_value(got) == got, "what was taken is taken again, as it is"
    assert o.convert_value(as_text(got)) == got or o.kind is str, "and so is its text"
    assert valid(json.loads(json.dumps(got)), o.json_schema()), (
        f"the schema refuses {got!r}, which was taken"
    )


NEAR = (
    st.integers(-70, 70)
    | st.floats(-2, 2)
    | st.none()
    | st.booleans()
    | st.text(max_size=5)
    | st.lists(st.integers(-1, 17), max_size=18)
    | st.dictionaries(st.integers(0, 9).map(str), st.floats(-101, 101), max_size=3)
)


@given(st.sampled_from(sorted(OPTIONS)), NEAR)
@settings(max_examples=1500)
def test_the_schema_and_convert_agree(name, value):
    o = OPTIONS[name]
    if isinstance(value, str) and (o.kind is not str or not value.isprintable() or value == "none"):
        return  # text is the command line's; a schema says nothing of control characters
    try:
        o.convert_value(value)
    except ValueError:
        assert not valid(value, o.json_schema())
    else:
        assert valid(value, o.json_schema())


def valid(x: Any, schema: dict[str, Any]) -> bool:
    """As much of JSON schema as options use, written from its specification."""
    if "anyOf" in schema:
        return any(valid(x, s) for s in schema["anyOf"])
    number = isinstance(x, (int, float)) and not isinstance(x, bool)
    kinds = {
        "integer": number and float(x).is_integer(),
        "number": number,
        "boolean": isinstance(x, bool),
        "string": isinstance(x, str),
        "array": isinstance(x, (list, tuple)),
        "object": isinstance(x, dict),
        "null": x is None,
    }
    if not kinds[schema["type"]] or ("enum" in schema and x not in schema["enum"]):
        return False
    bounds = [
        ("minimum", lambda a: x >= a),
        ("maximum", lambda a: x <= a),
        ("exclusiveMinimum", lambda a: x > a),
        ("exclusiveMaximum", lambda a: x < a),
        ("minItems", lambda a: len(x) >= a),
        ("maxItems", lambda a: len(x) <= a),
    ]
    return (
        all(holds(schema[b]) for b, holds in bounds if b in schema)
        and all(valid(y, schema["items"]) for y in (x if "items" in schema else ()))
        and (
            not isinstance(x, dict)
            or all(
                str(k).isdecimal() and valid(v, schema["additionalProperties"])
                for k, v in x.items()
            )
        )
    )


def test_whole_numbers_have_an_end():
    plain = Option("x", int, 0, "")
    assert plain.convert_value(LARGEST) == LARGEST
    for x in (LARGEST + 1, -LARGEST - 1, str(LARGEST + 1), 1e300):
        with pytest.raises(ValueError):
            plain.convert_value(x)
