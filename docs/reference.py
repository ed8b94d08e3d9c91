"""Writes docs/api.md from the docstrings of what users and authors of methods may rely on. `--check` only says whether it is up
to date."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from enum import Enum
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

import polydec

PAGE = Path(__file__).with_name("api.md")

SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
PLAIN_SECTIONS = ("Returns", "Yields")
"""The sections of a docstring, and those of them that have no entry for each name."""
FAMILIES = sorted(
    p.parts[-3] for p in Path(polydec.__file__).parent.glob("methods/*/loop/protocols.py")
)

ROOMS = {
    "core.protocols": "What methods are written in",
    "core.decoder": "What answers a request",
    "core.canvas_law": "What a masked-diffusion model is",
    "core.insertion_law": "What an insertion model is",
    **{f"methods.{name}.loop.protocols": f"Roles of the family {name}" for name in FAMILIES},
    "methods.registry.kit": "What a recipe is given",
}

HEAD = """\
# API reference

A program reaches all of polydec through **{count} names**; the rest of this page is for whoever adds a method.

```python
import polydec

print(polydec.generate(polydec.load("zoo:tiny"), "Once upon a time", max_tokens=16).text)
```

This page is made from the docstrings by `python docs/reference.py`. Shapes stand at the end of a tensor's name: N nodes of a
draft, V vocabulary, H hidden width, R rows.
"""


def page() -> str:
    out = [HEAD.format(count=len(polydec.__all__)), "## Public names: `polydec`", ""]
    for name in sorted(polydec.__all__, key=str.lower):
        out += described(name, getattr(polydec, name))
    for where, title in ROOMS.items():
        module = import_module(f"polydec.{where}")
        out += [f"## {title}: `polydec.{where}`", "", prose(module), ""]
        for name, thing in own(module):
            out += described(name, thing)
    testing = import_module("polydec.lab.testing")
    out += ["## For tests: `polydec.lab.testing`", "", prose(testing), ""]
    for name in testing.__all__:
        out += described(name, getattr(testing, name))
    return "\n".join(out).rstrip() + "\n"


def own(module: ModuleType) -> Iterable[tuple[str, Any]]:
    """The public classes and functions that a module defines, in its order."""
    things = [
        (name, inspect.unwrap(thing))
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
    ]
    return [
        (name, thing)
        for name, thing in things
        if inspect.isclass(thing) or inspect.isfunction(thing)
    ]


def described(name: str, thing: Any) -> list[str]:
    """One name: how it is called, what its docstring says, its members."""
    out = [f"### {name}", ""]
    if inspect.ismodule(thing):
        return [
            *out,
            prose(thing),
            "",
            *(line for key, one in own(thing) for line in member(key, one)),
        ]
    if inspect.isclass(thing) and issubclass(thing, Enum):
        return [*out, prose(thing), "", *(f"- `{one.name}`: `{one.value!r}`" for one in thing), ""]
    # an error takes a sentence, as all do
    plain_error = inspect.isclass(thing) and issubclass(thing, Exception)
    if not plain_error and not getattr(thing, "_is_protocol", False):
        out += ["```python", called(name, thing), "```", ""]
    out += [prose(thing), ""] if prose(thing) else []
    if inspect.isclass(thing):
        members = [
            line
            for key, one in vars(thing).items()
            if not key.startswith("_")
            for line in member(key, one)
        ]
        out += [*members, *([""] if members and members[-1] else [])]
    return out


def member(name: str, thing: Any) -> list[str]:
    """A method, a property or a function of a module, as an entry of a list; nothing for what is neither.

    Four spaces and an empty line: the site's Markdown takes less for a paragraph outside of the list.
    """
    if isinstance(thing, property) or hasattr(thing, "func"):
        call, text = name, prose(thing if isinstance(thing, property) else thing.func)
    elif isinstance(thing, (staticmethod, classmethod)) or inspect.isfunction(thing):
        function = getattr(thing, "__func__", thing)
        call = ("async " if inspect.iscoroutinefunction(function) else "") + called(
            name, function, 10_000
        )
        text = prose(function)
    else:
        return []
    return [f"- `{call}`", *(["", indent(text, " " * 4), ""] if text else [])]


def called(name: str, thing: Any, width: int = 110) -> str:
    """The signature, without `self`; a parameter a line where it is long."""
    signature = inspect.signature(thing)
    gives = (
        ""
        if inspect.isclass(thing) or signature.return_annotation is signature.empty
        else f" -> {typed(signature.return_annotation)[0]}"
    )
    parts, notes, bare = list[str](), list[str](), False
    for p in signature.parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not bare:
            parts, notes, bare = [*parts, "*"], [*notes, ""], True
        bare |= p.kind is p.VAR_POSITIONAL
        text, note = part(p)
        parts.append(text)
        notes.append(note)
    line = f"{name}({', '.join(parts)}){gives}"
    if len(line) <= width and not any(notes):
        return line
    lines = [
        f"    {text},{f'  # {note}' if note else ''}"
        for text, note in zip(parts, notes, strict=True)
    ]
    return "\n".join([f"{name}(", *lines, f"){gives}"])


def part(p: inspect.Parameter) -> tuple[str, str]:
    """One parameter, and what its annotation says beside the type."""
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    text, note = (p.name, "") if p.annotation is p.empty else typed(p.annotation)
    text = stars + (p.name if p.annotation is p.empty else f"{p.name}: {text}")
    if p.default is p.empty:
        return text, note
    default = (
        p.default.__name__
        if inspect.isfunction(p.default)
        else str(p.default)
        if isinstance(p.default, Enum)
        else repr(p.default)
    )
    return f"{text} = {'...' if default.startswith('<') else default}", note


def typed(annotation: Any) -> tuple[str, str]:
    """A type as it is written; of `Annotated[type, limits, help]` the type and the help."""
    if get_origin(annotation) is Annotated:
        kind, *more = get_args(annotation)
        return typed(kind)[0], "; ".join(x for x in more if isinstance(x, str))
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if not isinstance(annotation, str):  # without the modules that names stand in
        text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
    node = ast.parse(text, mode="eval").body
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Tuple)
        and ast.unparse(node.value) == "Annotated"
    ):
        kind, *more = node.slice.elts
        return ast.unparse(kind), "; ".join(
            x.value for x in more if isinstance(x, ast.Constant) and isinstance(x.value, str)
        )
    return text, ""


def prose(thing: Any) -> str:
    """The docstring; nothing where a dataclass or a protocol has none of its own."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else with_lists(text)


def with_lists(text: str) -> str:
    """A docstring whose sections (`Args:`, `Returns:` and so on) are lists and paragraphs of Markdown."""
    section = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*\n((?:[ ]{{4}}.*\n?|[ ]*\n)+)", re.M)

    def as_markdown(found: re.Match[str]) -> str:
        title = found.group(1)
        body = inspect.cleandoc("\n" + found.group(2))
        if title in PLAIN_SECTIONS:
            return f"**{title}:** {body}\n\n"
        entries = re.sub(r"^(\S[^:\n]*):", r"- `\1`:", body, flags=re.M)
        return f"**{title}:**\n\n{entries}\n\n"

    return section.sub(as_markdown, text + "\n").strip()


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.exists() and PAGE.read_text("utf-8") == text else 1)
    PAGE.write_text(text, "utf-8")
