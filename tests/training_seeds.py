"""Trainings that begin from another seed than 0, to see that no threshold hangs on one."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from typing import Any

from polydec.lab.train import specs


def spec_classes() -> list[Any]:
    """The classes of all specs of training that have a seed."""
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(specs.__path__, f"{specs.__name__}.")
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and "seed" in inspect.signature(value).parameters
    ]


def use_training_seed(seed: int) -> None:
    """Make `seed` the default of every spec's `seed`.

    Args:
        seed: any whole number of 0 or more.
    """
    for spec in spec_classes():
        parameters = inspect.signature(spec.__init__).parameters.values()
        defaults = [p for p in parameters if p.default is not inspect.Parameter.empty]
        spec.__init__.__defaults__ = tuple(
            seed if p.name == "seed" else p.default
            for p in defaults
            if p.kind is not p.KEYWORD_ONLY
        )
