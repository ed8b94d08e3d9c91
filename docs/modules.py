"""The reference by module: a page for every room of the package, with the public names of its modules and their docstrings.
MkDocs asks for them while it builds the site (site_pages.py)."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

import reference

import polydec

ROOT = Path(polydec.__file__).parent


def rooms() -> list[str]:
    """The folders of the package that hold modules, dotted: where a folder holds nothing but folders, these are the rooms."""
    return sorted(room for path in ROOT.glob("*/__init__.py") for room in _rooms_in(path.parent))


def _rooms_in(folder: Path) -> list[str]:
    inner = [path.parent for path in folder.glob("*/__init__.py")]
    modules_here = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    if inner and not modules_here:
        return [room for path in inner for room in _rooms_in(path)]
    return [".".join(folder.relative_to(ROOT).parts)]


def modules(room: str) -> list[str]:
    """The public modules of a room by their full names, the room itself first."""
    name = f"polydec.{room}"
    found = walk_packages([str(ROOT.joinpath(*room.split(".")))], f"{name}.")
    public = [m.name for m in found if not m.name.rpartition(".")[2].startswith("_")]
    return [name, *sorted(public)]


def page(room: str) -> str:
    """Everything public of a room."""
    out = [f"# polydec.{room}", ""]
    first, *others = modules(room)
    out += [head(first), ""]
    for name in others:
        out += [f"## {name.removeprefix('polydec.')}", "", head(name), ""]
        module = loaded(name)
        for key, thing in reference.own(module) if module else ():
            out += described(key, thing)
    return parted("\n".join(out)).rstrip() + "\n"


def parted(text: str) -> str:
    """Docstrings whose promises, one a line, are paragraphs of their own."""
    return re.sub(r"^(Exact|Reduces to|Source): ", r"\n**\1:** ", text, flags=re.M)


def described(name: str, thing: object) -> list[str]:
    """A name as docs/api.md has it; where Python knows no signature of it, without one."""
    try:
        return reference.described(name, thing)
    except (TypeError, ValueError, SyntaxError):
        return [f"### {name}", "", reference.prose(thing), ""]


def head(name: str) -> str:
    """A module's docstring; of one that cannot be imported it is read from the file."""
    if (module := loaded(name)) is not None:
        return cleandoc(module.__doc__ or "")
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""


def loaded(name: str) -> ModuleType | None:
    """The module; None where something that it imports is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def pages() -> dict[str, str]:
    """Every page by its path in the site, and a list of them."""
    out = {f"reference/{room}.md": page(room) for room in rooms()}
    listed = [
        "# By module",
        "",
        "What each room of the package holds. [The structure](../structure.md) says how they build on one another;",
    ]
    listed += [
        "programs need no more than [the public names](../api.md).",
        "",
        "| room | what it holds |",
        "|---|---|",
    ]
    for room in rooms():
        first = " ".join(head(f"polydec.{room}").split("\n\n")[0].split())
        listed.append(f"| [{room}]({room}.md) | {first.replace('|', chr(92) + '|')} |")
    out["reference/index.md"] = "\n".join(listed) + "\n"
    return out
