"""Presses (ways to keep old keys and values), found by name, alias or paper, and built."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from polydec.base.options import Option
from polydec.methods.registry.catalogue import ModuleCatalogue

if TYPE_CHECKING:
    from polydec.models.nets.press import CachePress

PRESSES = ModuleCatalogue(("polydec.methods.presses",), "presses", "press", "cache is {}")


def press_modules() -> dict[str, ModuleType]:
    """Return the module of each press by its name (the file's, with hyphens).

    Those of other packages are included (`plugins.py`).
    """
    return PRESSES.modules()


def press_names() -> dict[str, str]:
    """Return the own name of a press by every name that it answers to.

    The names are in lower case with hyphens.
    """
    return PRESSES.names()


def find_press(name: str) -> str:
    """Return the own name of the press that answers to a name, an alias or an arXiv number.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return PRESSES.find(name, f"it must be one of {', '.join(press_modules())}")


def get_press_module(name: str) -> ModuleType:
    """Return a press's module, by any of its names.

    Raises:
        RequestError: There is no such name; the message gives the nearest ones.
    """
    return press_modules()[find_press(name)]


def press_options(name: str) -> tuple[Option, ...]:
    """Return the options of a press, from the signature of its `build`."""
    return PRESSES.options(find_press(name))


def press_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all options of a press with their values.

    Args:
        name: Any name of the press.
        given: Values by option. None: the defaults alone.

    Raises:
        RequestError: The press or an option is unknown, or a value is of the wrong type or out of
            range.
    """
    return PRESSES.chosen(find_press(name), given)


def build(name: str, given: Mapping[str, Any] | None = None) -> tuple[CachePress, dict[str, Any]]:
    """Build a press.

    Args:
        name: Any name of the press.
        given: Values by option. None: the defaults alone.

    Returns:
        The press, and all its options with their values.

    Raises:
        RequestError: The press or an option is unknown, or a value is not legal.
    """
    # The values come back with the press, so that a report can name all of them.
    values = press_option_values(name, given)
    return get_press_module(name).build(**values), values


def describe_press(name: str) -> dict[str, Any]:
    """Return the object that `polydec presses --json` prints for a press."""
    return PRESSES.describe(find_press(name))
