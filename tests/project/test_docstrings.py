"""Docstrings say what each field is, where a mechanism comes from, and what a public name takes."""

import dataclasses
import inspect
import re
from typing import Annotated, get_origin

import pytest

import polydec
from polydec.methods.registry import registry

MECHANISMS = [
    pytest.param(kind, id=f"{role}-{key}")
    for role in registry.ROLES
    for key, kind in registry.mechanism_classes(role).items()
]
NO_SOURCE = {
    "NothingDrafter",
    "FixedPolicy",
    "GreedyRule",
    "LeftToRightUnmasker",
    "InOrderUnmasker",
    "FullRefresh",
}
"""Limiting cases, which nobody has to have published."""

OF_A_PROTOCOL = {"language", "open"}
"""What a public class has as its protocol says: its arguments stand in `OutputConstraint` and in `Target`."""


def named(words: str, name: str) -> bool:
    return re.search(rf"(?<!\w)`?{re.escape(name)}`?(?!\w)", words) is not None


def unnamed(kind: type) -> list[str]:
    """The fields of a dataclass of which neither its docstring nor their own annotation says anything."""
    return [
        f.name
        for f in dataclasses.fields(kind)
        if not f.name.startswith("_")
        and get_origin(f.type) is not Annotated
        and not named(inspect.getdoc(kind) or "", f.name)
    ]


@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_mechanism_says_what_its_fields_are_and_where_it_comes_from(kind):
    assert unnamed(kind) == []
    assert kind.__name__ in NO_SOURCE or "Source:" in inspect.getdoc(kind)


def members(name: str) -> dict[str, object]:
    """The functions that a public name is or has, by how they are called."""
    thing = getattr(polydec, name)
    if inspect.isfunction(thing):
        return {name: thing}
    if not inspect.isclass(thing):
        return {}
    own = {key: getattr(one, "__func__", one) for key, one in vars(thing).items()}
    return {
        f"{name}.{key}": one
        for key, one in own.items()
        if inspect.isfunction(one) and not key.startswith("_") and key not in OF_A_PROTOCOL
    }


@pytest.mark.parametrize("name", sorted(polydec.__all__))
def test_a_public_name_says_what_it_takes(name):
    thing = getattr(polydec, name)
    if dataclasses.is_dataclass(thing) and name != "Sampling":  # a rule a file says these
        assert unnamed(thing) == []
    for call, function in members(name).items():
        words = inspect.getdoc(function)
        assert words, f"{call} says nothing"
        hints = inspect.signature(function).parameters.values()
        asked = [p.name for p in hints if p.name != "self" and "Annotated[" not in str(p)]
        assert [p for p in asked if not named(words, p)] == [], call
