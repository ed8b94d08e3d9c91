"""Commands that the lab brings. The engine runs without it: what an entry point of ours names is
imported, nothing else."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from types import ModuleType

from polydec.base.errors import MissingError

GROUP = "polydec.commands"
"""Entry points. Each names a package whose COMMANDS says, by the name of a command, what a list
says of it: its module there is imported when it is called."""
LAB_COMMANDS = ("bench", "cache-cost", "demo", "harness", "train", "verify")
"""What is missing where the lab is."""
NEEDS_LAB = "{} needs the lab, which is not here: pip install 'polydec[lab]'"


@cache
def command_packages() -> tuple[ModuleType, ...]:
    """The packages of commands that our own metadata names and that are here.

    The metadata of other packages is not read: that would take as long as a list of commands.
    """
    try:
        points = distribution("polydec").entry_points.select(group=GROUP)
    except PackageNotFoundError:  # the sources stand on the path, and were not installed
        return ()
    rooms = [(point.value, point.value.rpartition(".")[0]) for point in points]
    return tuple(import_module(package) for package, room in rooms if find_spec(room))


def lab_commands() -> dict[str, ModuleType]:
    """By the name of a command the package that brings it."""
    return {name: package for package in command_packages() for name in package.COMMANDS}


def lab_module(name: str, asker: str) -> ModuleType:
    """A module of the lab that a command of the engine hands some of its work to.

    Args:
        name: Of the module, in a package of commands.
        asker: What needs it, as a sentence begins ("polydec trace replay").

    Raises:
        MissingError: The lab is not installed.
    """
    for package in command_packages():
        path = f"{package.__name__}.{name}"
        if find_spec(path):
            return import_module(path)
    raise MissingError(NEEDS_LAB.format(asker))


def require_lab(name: str) -> None:
    """Raise MissingError where a command of this name is the lab's, and the lab is not installed."""
    if name in LAB_COMMANDS and name not in lab_commands():
        raise MissingError(NEEDS_LAB.format(f"polydec {name}"))
