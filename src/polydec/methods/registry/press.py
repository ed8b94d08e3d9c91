"""Ways to keep old keys and values: found by their files, names, aliases and papers, and built for a model to read."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from polydec.base.options import Option
from polydec.methods.registry.catalogue import Catalogue

if TYPE_CHECKING:
    from polydec.models.nets.press import Press

PRESSES = Catalogue(("polydec.methods.presses",), "presses", "press", "cache is {}")


def presses() -> dict[str, ModuleType]:
    """The module of each way by its name (the file's, with hyphens), those of other packages included (`plugins.py`)."""
    return PRESSES.modules()


def names() -> dict[str, str]:
    """Every name that a way answers to, in lower case with hyphens: its own, its aliases, its paper's number; and its own."""
    return PRESSES.names()


def find(name: str) -> str:
    """The way that answers to a name, an alias or an arXiv number. Raises RequestError with the nearest names for one that is
    not there."""
    return PRESSES.find(name, f"it must be one of {', '.join(presses())}")


def get(name: str) -> ModuleType:
    """A way's module, by any of its names. Raises RequestError with the nearest names for one that is not there."""
    return presses()[find(name)]


def options(name: str) -> tuple[Option, ...]:
    """The options of a way, from the signature of its `build`."""
    return PRESSES.options(find(name))


def chosen(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options of a way with the values they have. Raises RequestError for one that is unknown, of the wrong type or out of
    range."""
    return PRESSES.chosen(find(name), given)


def build(name: str, given: Mapping[str, Any] | None = None) -> tuple[Press, dict[str, Any]]:
    """The press, and all options with the values they have. Raises RequestError for an option that is not legal."""
    values = chosen(name, given)
    return get(name).build(**values), values


def describe(name: str) -> dict[str, Any]:
    """The object of `polydec presses --json`."""
    return PRESSES.describe(find(name))
