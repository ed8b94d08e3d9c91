"""What Python users call: load a model, generate, stream, and an engine for many requests at once."""

from __future__ import annotations

from polydec.ask import Ask
from polydec.engine import Choice, Completion, Engine, Piece, Ticket, follow, generate, stream
from polydec.loaded import LM, TORCH_THREADS, Prompt, load

__all__ = [
    "LM",
    "TORCH_THREADS",
    "Ask",
    "Choice",
    "Completion",
    "Engine",
    "Piece",
    "Prompt",
    "Ticket",
    "follow",
    "generate",
    "load",
    "stream",
]
