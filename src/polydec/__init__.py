"""Polydec decodes language models by any published method: every method composes, every promise can be checked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polydec.api import (
        LM,
        Ask,
        Choice,
        Completion,
        Engine,
        Piece,
        Ticket,
        generate,
        load,
        stream,
    )
    from polydec.base.errors import FileError, MissingError, PolydecError, RequestError
    from polydec.constraints.any_of import AnyOf
    from polydec.constraints.json_schema import JsonSchema
    from polydec.constraints.lark import Lark
    from polydec.constraints.regex import Regex
    from polydec.constraints.span_of import SpanOf
    from polydec.core.request import Request, Result
    from polydec.core.rng import Rng
    from polydec.core.trace import replay
    from polydec.core.types import Draft, Exactness
    from polydec.families.ar.speculative import Speculative
    from polydec.methods import registry
    from polydec.models.soft import Soft
    from polydec.shapers.sampling import Sampling, build_shapers
    from polydec.targets.shaped import Shaped

__version__ = "0.2.0"
__all__ = [
    "LM",
    "AnyOf",
    "Ask",
    "Choice",
    "Completion",
    "Draft",
    "Engine",
    "Exactness",
    "FileError",
    "JsonSchema",
    "Lark",
    "MissingError",
    "Piece",
    "PolydecError",
    "Regex",
    "Request",
    "RequestError",
    "Result",
    "Rng",
    "Sampling",
    "Shaped",
    "Soft",
    "SpanOf",
    "Speculative",
    "Ticket",
    "build_shapers",
    "generate",
    "load",
    "registry",
    "replay",
    "stream",
]

# Names are looked up when they are first used: torch takes seconds to load, and the command's entry point, which has to meet
# an interrupt meanwhile, is loaded after this module.
_HOMES = {
    "api": (
        "LM",
        "Ask",
        "Choice",
        "Completion",
        "Engine",
        "Piece",
        "Ticket",
        "generate",
        "load",
        "stream",
    ),
    "base.errors": ("FileError", "MissingError", "PolydecError", "RequestError"),
    "constraints.any_of": ("AnyOf",),
    "constraints.json_schema": ("JsonSchema",),
    "constraints.lark": ("Lark",),
    "constraints.regex": ("Regex",),
    "constraints.span_of": ("SpanOf",),
    "families.ar.speculative": ("Speculative",),
    "core.request": ("Request", "Result"),
    "core.rng": ("Rng",),
    "core.trace": ("replay",),
    "core.types": ("Draft", "Exactness"),
    "models.soft": ("Soft",),
    "shapers.sampling": ("Sampling", "build_shapers"),
    "targets.shaped": ("Shaped",),
}
_HOME = {name: f"polydec.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("api", "registry"):
        return import_module("polydec.api" if name == "api" else "polydec.methods.registry")
    if name not in _HOME:
        raise AttributeError(f"module 'polydec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
