"""A question of a suite, and who tells how right an answer to it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BenchProblem:
    """A question. right: how right an answer is, 0 to 1, however it is written; strict: the same of one that is written as
    asked for, else 0; length: tokens that an answer may take; items: of the list that is asked about, 0 where there is none;
    infill: the gaps that the answer fills where its length is known; known: whether an embedded model was trained on it."""

    task: str
    question: str
    right: Callable[[str], float]
    strict: Callable[[str], float]
    length: int = 64
    items: int = 0
    infill: str | None = None
    known: bool = False
