"""What a perspective is: rows of a file, what each asks, and a score of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.record import StrictRecord


@dataclass(frozen=True)
class TrustQuestion:
    """What is asked of a model. draws: answers, each with a seed of its own; most: tokens of one."""

    prompt: str
    system: str = ""
    temperature: float = 0.0
    draws: int = 1
    most: int = 12


@dataclass(frozen=True)
class JudgedRow:
    """A row, and the answers to each of its questions."""

    row: Any
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TrustPerspective:
    """row: what a line of a file must hold; asked: the questions of a row, always equally many; score: 0 to 100, higher is
    better, of at least a judged row; parts: figures that stand beside it, by name."""

    row: type[StrictRecord]
    asked: Callable[[Any], Sequence[TrustQuestion]]
    score: Callable[[Sequence[JudgedRow]], float]
    parts: Callable[[Sequence[JudgedRow]], Mapping[str, float]]
