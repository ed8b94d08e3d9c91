"""Names of a module that are looked up when they are first used, as what they stand in takes seconds to load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def looked_up(module: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make a module's `__getattr__` that imports names when they are first used.

    Args:
        module: Name of the module.
        homes: For each module the names that are to be found there.

    Returns:
        The function; a name that was used once becomes an attribute of the module.
    """
    # From names by module to modules by name.
    home = {name: place for place, names in homes.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        # Python asks `__getattr__` only for names that a module does not have, so this is asked
        # once.
        setattr(sys.modules[module], name, value)
        return value

    return look_up
