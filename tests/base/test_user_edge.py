"""The edge: what is wrong is one sentence."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polydec import load
from polydec.base import edge
from polydec.models.sessions import checkpoint
from polydec.request.loading import loading_options


class Cat(edge.StrictRecord):
    name: str
    lives: int = 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '"x"',
        "nan",
        "[" * 10_000,
        '{"a":' * 100_000,
        "\x1b[31m{",
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_object_is_said(text):
    with pytest.raises(ValueError, match="file 'x' is not a JSON object") as error:
        edge.parse_object(text, "file 'x'")
    assert edge.error_sentence(error.value) == str(error.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "name is missing"),
        ({"name": 3}, "name is 3: must be a valid string"),
        ({"name": "x", "lives": True}, "lives is True"),
        ({"name": "x", "lives": "\x1b[2J" * 99}, "lives is '\\x1b"),
        ([], "it"),
        (None, "it"),
    ],
)
def test_a_wrong_field_is_named(data, says):
    with pytest.raises(ValueError) as error:
        edge.validate_record(Cat, data, "cat")
    assert str(error.value).startswith("cat: ") and says in str(error.value)
    assert edge.error_sentence(error.value) == str(error.value)


def test_sentences():
    assert edge.error_sentence("a\nb\x1b[31m\x9b") == "a b\\x1b[31m\\x9b"
    for long in ("word " * 10_000, "x" * 10_000 + " y" * 300):
        assert edge.LONGEST - 1 <= len(edge.error_sentence(long)) <= edge.LONGEST
    assert edge.escape_control_characters("a\tb\n\x00\u202e") == "a\tb\n\\x00\\u202e"


def test_files_that_are_none(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 11)
    for path, most in (
        (tmp_path, 10),
        (tmp_path / "none", 10),
        (tmp_path / "large", 10),
        (tmp_path / "a\0b", 10),
        (tmp_path / ("x" * 5000), 10),
    ):
        with pytest.raises(ValueError, match="cannot be read"):
            edge.read_bytes(path, most)
    assert edge.read_bytes(tmp_path / "large", 11) == b"x" * 11
    if os.path.exists("/dev/zero"):
        with pytest.raises(ValueError, match="not an ordinary file"):
            edge.read_bytes(edge.Path("/dev/zero"))


@pytest.mark.parametrize("threads", [0, -1, 40_000, 100_000, 10**30, 10**4000])
def test_threads_have_bounds(threads):
    bound = loading_options()["threads"]
    with pytest.raises(ValueError, match="threads is"):
        bound.convert_value(threads)
    for loading in (load, checkpoint.load_bundle):
        with pytest.raises(ValueError, match="threads is"):
            loading("zoo:tiny", threads=threads)
    assert bound.convert_value(None) is None and bound.convert_value(edge.most_threads()) >= 4


@given(
    st.lists(st.integers(1, 120), min_size=1, max_size=40).map(
        lambda sizes: " ".join("x" * n for n in sizes)
    )
)
@example("y" * 99 + " " + "z" * 98 + " " + "x" * 100 + " more")
def test_a_sentence_stays_as_it_is(text):
    once = edge.error_sentence(text)
    assert edge.error_sentence(once) == once and len(once) <= edge.LONGEST
