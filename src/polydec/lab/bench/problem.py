"""A question of a suite, and who tells how right an answer to it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BenchProblem:
    """A question of a suite.

    Attributes:
        task: Name of the task that it belongs to.
        question: What the model is asked.
        right: How right an answer is, 0 to 1, however it is written.
        strict: The same of an answer that is written as asked for, else 0.
        length: Tokens that an answer may take.
        items: Items of the list in question; 0 where there is none.
        infill: The gaps that the answer fills where its length is known; None elsewhere.
        known: Whether an embedded model was trained on it.
    """

    task: str
    question: str
    right: Callable[[str], float]
    strict: Callable[[str], float]
    length: int = 64
    items: int = 0
    infill: str | None = None
    known: bool = False
