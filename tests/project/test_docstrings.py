"""Docstrings say what each field is, where a mechanism comes from, and what a public name takes."""

import ast
import dataclasses
import inspect
import re
from typing import Annotated, get_origin

import pytest

import polydec
from polydec.methods.registry import registry
from project_paths import PROJECT_ROOT

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

OF_A_PROTOCOL = {"token_language", "open_session"}
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


LIBRARY = {
    path: ast.parse(path.read_text("utf-8"))
    for path in sorted((PROJECT_ROOT / "src" / "polydec").rglob("*.py"))
}
SEE = re.compile(r"\(see `?([\w./]+)`?|\(`([A-Z][a-z]\w*)`\)")
"""What a docstring sends its reader to: `(see X)`, or a class in brackets and quotes."""


def defined() -> set[str]:
    """Everything in the library that a docstring may name: classes, functions, fields, constants, arguments, files."""
    out = {path.name for path in LIBRARY} | {path.stem for path in LIBRARY}
    for node in (node for tree in LIBRARY.values() for node in ast.walk(tree)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            out.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
        elif isinstance(node, ast.arg):
            out.add(node.arg)
    return out


def test_a_docstring_sends_its_reader_to_what_there_is():
    known = defined()
    words = [
        (path, node.value.value)
        for path, tree in LIBRARY.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    sent = [
        (path.name, name) for path, text in words for name in (a or b for a, b in SEE.findall(text))
    ]
    assert len(sent) > 20
    lost = [
        (file, name)
        for file, name in sent
        if name.rpartition("/")[2] not in known and name.rpartition(".")[2] not in known
    ]
    assert lost == []
