"""What a perspective is: rows of a file, what each asks, and a score of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.outside_records import StrictRecord


@dataclass(frozen=True)
class TrustQuestion:
    """What is asked of a model.

    Attributes:
        prompt: The user's message.
        system: The system message; "" for none.
        temperature: Sampling temperature, 0 is greedy.
        draws: Answers, each with a seed of its own.
        most: Tokens of an answer at most.
    """

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
    """A perspective: rows of a file, what each asks, and a score of the answers.

    Attributes:
        row: What a line of a file must hold.
        asked: The questions of a row, always equally many.
        score: A score of at least one judged row, 0 to 100, higher is better.
        parts: Further figures by name.
    """

    row: type[StrictRecord]
    asked: Callable[[Any], Sequence[TrustQuestion]]
    score: Callable[[Sequence[JudgedRow]], float]
    parts: Callable[[Sequence[JudgedRow]], Mapping[str, float]]
