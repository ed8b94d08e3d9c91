"""Methods and their parts that other installed packages bring.

A package says in its own metadata what it has, as an entry point whose group is the room and whose name is the method's:

    [project.entry-points."polydec.methods"]
    echo = "my_package.echo"

The module has what a file of that room has: a recipe, a steering or a press its CARD and `build`, a sampling rule its RULE,
a kind of constraint its KIND, what is trained its KIND, `load` and class, a training its COMMAND, a drafter on states its
KINDS, a mechanism its class. The rooms are "methods", "steerings", "presses", "shapers", "constraints", "learned", "training",
"students", and the folders of mechanisms ("drafters", "trees", and so on).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from polydec.base.caller_warnings import warn_caller
from polydec.base.options import short_repr

OFF = "POLYDEC_PLUGINS"
"""The environment variable that leaves all plug-ins out where it is "off"."""


def load_plugins(
    room: str,
    taken: Collection[str],
    part: Callable[[Any, str], Any],
    what: str,
    only: str | None = None,
) -> dict[str, Any]:
    """Load what other packages bring into a room.

    What cannot be used is left out with a warning that names its package: a damaged plug-in must
    not stop all other methods. Only what leaves Python altogether (`os._exit`, a crash of compiled
    code) ends the process.

    Args:
        room: The end of the entry points' group.
        taken: Names that Polydec's own files have. They cannot be replaced, so a name means the
            same everywhere.
        part: (what an entry point names, its name) -> the thing that this room holds, or None where
            it has no such thing.
        what: What such a thing is called in a warning.
        only: The one name that is asked for; the others are not imported. None: all.

    Returns:
        The things by their names.
    """
    brought = dict[str, Any]()
    for point in _points(room):
        if only not in (None, point.name):
            continue
        # Of two packages with one name the first in order wins, and the other is warned about.
        if point.name in taken or point.name in brought:
            _warn(point, f"the name {point.name} is taken")
            continue
        try:
            thing = part(point.load(), point.name)
        except KeyboardInterrupt:
            raise
        except (
            BaseException
        ) as error:  # a module of somebody else may raise anything, SystemExit too
            _warn(point, f"it cannot be imported ({_told_by(error)})")
            continue
        if thing is None:
            _warn(point, f"{point.value} has no {what}")
        else:
            brought[point.name] = thing
    return brought


def has_plugins(room: str) -> bool:
    """Whether any package brings something into a room; nothing is imported for that."""
    return bool(_points(room))


def plugin_packages(room: str, taken: Collection[str]) -> dict[str, str]:
    """Look up which packages bring things into a room; nothing is imported for that.

    Args:
        room: The room.
        taken: Names that Polydec's own files have.

    Returns:
        For each name the package.
    """
    # In reverse, so that of equal names the first one is left, as in `load_plugins`.
    return {p.name: _package(p) for p in reversed(_points(room)) if p.name not in taken}


@cache
def _points(room: str) -> tuple[EntryPoint, ...]:
    """The entry points of a room in an order that does not depend on the installation's."""
    if os.environ.get(OFF, "").lower() == "off":
        return ()
    # Sorted, so that which of two equal names wins does not depend on the installation.
    return tuple(sorted(entry_points(group=f"polydec.{room}"), key=lambda p: (p.name, p.value)))


def _package(point: EntryPoint) -> str:
    if point.dist:
        return point.dist.name
    return "a package"


def _told_by(error: BaseException) -> str:
    """What an error of somebody else's code says of itself, as far as that can be asked."""
    # The error of foreign code may fail to say itself.
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    if message:
        return f"{name}: {message}"
    return name


def _warn(point: EntryPoint, why: str) -> None:
    warn_caller(
        f"{_package(point)}: its plug-in {short_repr(point.name)} of {point.group} is left out: {why[:200]}"
    )


def with_card(module: Any, name: str) -> Any:
    """Accept a recipe or steering: a module with a CARD of that name, and a `build` that makes
    what it describes.

    Args:
        module: What the entry point names.
        name: The entry point's name.

    Returns:
        The module, or None.
    """
    card = getattr(module, "CARD", None)
    fits = getattr(card, "name", None) == name and callable(getattr(module, "build", None))
    if fits:
        return module
    return None


def with_rule(module: Any, name: str) -> Any:
    """Accept a rule of sampling: what a module calls RULE, of that name.

    Args:
        module: What the entry point names.
        name: The entry point's name.

    Returns:
        The rule, or None.
    """
    return _called("RULE", module, name)


def with_kind(module: Any, name: str) -> Any:
    """Accept a kind of constraint: what a module calls KIND, of that name.

    Args:
        module: What the entry point names.
        name: The entry point's name.

    Returns:
        The kind, or None.
    """
    return _called("KIND", module, name)


def with_artefact(module: Any, name: str) -> Any:
    """Accept a kind of what is trained: a module whose KIND has that name, with a `load` and the
    class of what it loads.

    Args:
        module: What the entry point names.
        name: The entry point's name.

    Returns:
        The module, or None.
    """
    loads = callable(getattr(module, "load", None))
    classed = any(
        isinstance(x, type) and x.__dict__.get("kind") == name for x in vars(module).values()
    )
    if loads and classed and _called("KIND", module, name) is not None:
        return module
    return None


def with_command(module: Any, name: str) -> Any:
    """Accept a training: what a module calls COMMAND, of that name.

    Args:
        module: What the entry point names.
        name: The entry point's name.

    Returns:
        The command, or None.
    """
    return _called("COMMAND", module, name)


def _called(constant: str, module: Any, name: str) -> Any:
    """A module's constant whose own name is the entry point's; None where it has none."""
    thing = getattr(module, constant, None)
    if getattr(thing, "name", None) == name:
        return thing
    return None
