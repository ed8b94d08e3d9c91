"""Ways to keep old keys and values: found by their files, names, aliases and papers, and built for
a model to read."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from polydec.base.options import Option
from polydec.methods.registry.catalogue import ModuleCatalogue

if TYPE_CHECKING:
    from polydec.models.nets.press import CachePress
    from polydec.models.sessions.image_press import ImagePress

PRESSES = ModuleCatalogue(("polydec.methods.presses",), "presses", "press", "cache is {}")


def press_modules() -> dict[str, ModuleType]:
    """The module of each way by its name (the file's, with hyphens), those of other packages
    included (`plugins.py`)."""
    return PRESSES.all_modules()


def press_names() -> dict[str, str]:
    """Every name that a way answers to, in lower case with hyphens: its own, its aliases, its
    paper's number; and its own."""
    return PRESSES.all_names()


def find_press(name: str) -> str:
    """The way that answers to a name, an alias or an arXiv number. Raises RequestError with the
    nearest names for one that is not there."""
    return PRESSES.find_module(name, f"it must be one of {', '.join(press_modules())}")


def get_press_module(name: str) -> ModuleType:
    """A way's module, by any of its names. Raises RequestError with the nearest names for one that
    is not there."""
    return press_modules()[find_press(name)]


def press_options(name: str) -> tuple[Option, ...]:
    """Return the options of a press, from the signature of its `build`."""
    return PRESSES.module_options(find_press(name))


def press_option_values(name: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Complete the options of a press.

    Args:
        name: Any name of it.
        given: Options as text or typed; the others have their defaults.

    Returns:
        All options with the values they have.

    Raises:
        RequestError: An option is unknown, of the wrong type or out of range.
    """
    return PRESSES.complete_options(find_press(name), given)


def reads_images(name: str) -> bool:
    """Whether a press makes images smaller, and leaves the entries of words as they are. Raises
    RequestError for one that is not there."""
    return getattr(get_press_module(name), "READS_IMAGES", False)


def block_press_names() -> tuple[str, ...]:
    """The presses that pack old entries of any text, block by block, in order of their names."""
    return tuple(name for name in sorted(press_modules()) if not reads_images(name))


def build(
    name: str, given: Mapping[str, Any] | None = None
) -> tuple[CachePress | ImagePress, dict[str, Any]]:
    """The press, and all options with the values they have. Raises RequestError for an option that
    is not legal."""
    # The values come back with the press, so that a report can name all of them.
    values = press_option_values(name, given)
    return get_press_module(name).build(**values), values


def describe_press(name: str) -> dict[str, Any]:
    """Return the object that `polydec presses --json` prints for a press."""
    return PRESSES.describe_module(find_press(name))
