"""The kinds of drafters that `polydec train` makes on a target's states.

Each has a file, which says what is trained, and in its KINDS how; a file has the name of its first
kind, by which lists of flags know it. Adding a kind is adding a file;
another package brings one as an entry point (`plugins.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from polydec.base import plugins
from polydec.lab.train.students import DrafterKind


def _kind(thing: Any, name: str) -> DrafterKind | None:
    """The kind that an entry point names: the kind itself, or a module whose KINDS has it."""
    thing = getattr(thing, "KINDS", {}).get(name, thing)
    if isinstance(thing, DrafterKind):
        return thing
    return None


def _found() -> dict[str, DrafterKind]:
    own = dict[str, DrafterKind]()
    for module in iter_modules(__path__):
        own |= import_module(f"{__name__}.{module.name}").KINDS
    # A plugin cannot take the name of a kind that is here.
    return own | plugins.load_plugins("students", own, _kind, "KINDS with that name")


KINDS: Mapping[str, DrafterKind] = _found()
"""All of them by name, those of other packages included."""
