"""What Python users call: load a model, generate, stream, and an engine for many requests at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polydec.base.lazy_names import looked_up

if TYPE_CHECKING:
    from polydec.request.async_engine import AsyncEngine, agenerate, astream
    from polydec.request.engine import (
        Choice,
        Completion,
        Engine,
        Piece,
        Ticket,
        generate,
        stream,
        stream_ticket,
    )
    from polydec.request.fields import Ask, Prompt
    from polydec.request.loaded import TORCH_THREADS, LoadedModel
    from polydec.request.loading import load

__all__ = [
    "TORCH_THREADS",
    "Ask",
    "AsyncEngine",
    "Choice",
    "Completion",
    "Engine",
    "LoadedModel",
    "Piece",
    "Prompt",
    "Ticket",
    "agenerate",
    "astream",
    "generate",
    "load",
    "stream",
    "stream_ticket",
]

_HOMES = {
    "polydec.request.async_engine": ("AsyncEngine", "agenerate", "astream"),
    "polydec.request.engine": (
        "Choice",
        "Completion",
        "Engine",
        "Piece",
        "Ticket",
        "stream_ticket",
        "generate",
        "stream",
    ),
    "polydec.request.fields": ("Ask", "Prompt"),
    "polydec.request.loaded": ("LoadedModel", "TORCH_THREADS"),
    "polydec.request.loading": ("load",),
}
# commands import this module for their signatures, and most of a command line is settled before anything computes
__getattr__ = looked_up(__name__, _HOMES)
