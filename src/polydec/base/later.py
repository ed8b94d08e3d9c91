"""Names of a module that are looked up when they are first used, as what they stand in takes seconds to load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def looked_up(module: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A module's `__getattr__`. homes: by module, the names that stand there; a name that was used once is kept."""
    home = {name: place for place, names in homes.items() for name in names}

    def look(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    return look
