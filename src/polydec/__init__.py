"""Polydec decodes language models by any published method: every method composes, every promise can be checked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polydec.base.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from polydec.api import (
        Ask,
        AsyncEngine,
        Choice,
        Completion,
        Engine,
        LoadedModel,
        Piece,
        Ticket,
        agenerate,
        astream,
        generate,
        load,
        stream,
    )
    from polydec.base.errors import FileError, MissingError, PolydecError, RequestError
    from polydec.core.request import Request, Result
    from polydec.core.rng import Rng
    from polydec.core.trace import replay
    from polydec.core.types import Draft, Exactness
    from polydec.laws.constraints.any_of import AnyOf
    from polydec.laws.constraints.json_schema import JsonSchema
    from polydec.laws.constraints.lark import LarkGrammar
    from polydec.laws.constraints.regex import Regex
    from polydec.laws.constraints.span_of import SpanOf
    from polydec.laws.shapers.sampling import Sampling, build_shapers
    from polydec.laws.targets.shaped import ShapedTarget
    from polydec.methods.registry import registry
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.models.formats.images import Image
    from polydec.models.sessions.soft import Soft

__version__ = PACKAGE_VERSION
__all__ = [
    "AnyOf",
    "Ask",
    "AsyncEngine",
    "Choice",
    "Completion",
    "Draft",
    "Engine",
    "Exactness",
    "FileError",
    "Image",
    "JsonSchema",
    "LarkGrammar",
    "LoadedModel",
    "MissingError",
    "Piece",
    "PolydecError",
    "Regex",
    "Request",
    "RequestError",
    "Result",
    "Rng",
    "Sampling",
    "ShapedTarget",
    "Soft",
    "SpanOf",
    "SpeculativeDecoder",
    "Ticket",
    "agenerate",
    "astream",
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
        "LoadedModel",
        "Ask",
        "AsyncEngine",
        "Choice",
        "Completion",
        "Engine",
        "Piece",
        "Ticket",
        "agenerate",
        "astream",
        "generate",
        "load",
        "stream",
    ),
    "base.errors": ("FileError", "MissingError", "PolydecError", "RequestError"),
    "laws.constraints.any_of": ("AnyOf",),
    "laws.constraints.json_schema": ("JsonSchema",),
    "laws.constraints.lark": ("LarkGrammar",),
    "laws.constraints.regex": ("Regex",),
    "laws.constraints.span_of": ("SpanOf",),
    "methods.speculative.loop.speculative": ("SpeculativeDecoder",),
    "core.request": ("Request", "Result"),
    "core.rng": ("Rng",),
    "core.trace": ("replay",),
    "core.types": ("Draft", "Exactness"),
    "models.formats.images": ("Image",),
    "models.sessions.soft": ("Soft",),
    "laws.shapers.sampling": ("Sampling", "build_shapers"),
    "laws.targets.shaped": ("ShapedTarget",),
}
_HOME = {name: f"polydec.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("api", "registry"):
        return import_module(
            "polydec.api" if name == "api" else "polydec.methods.registry.registry"
        )
    if name not in _HOME:
        raise AttributeError(f"module 'polydec' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
