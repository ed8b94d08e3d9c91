"""What a coroutine may await: a forward pass, all of several coroutines, or the first of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.values import fast_dataclass
from polydec.core.protocols import BatchedModel

Coro = Coroutine[Any, Any, Any]


@fast_dataclass(eq=False, slots=True)
class ForwardQuery:
    """One query to a model; `size` is how many positions it feeds (for the accounts), `behind` how many stand before them.

    split: of a prompt, which can be fed in parts: its beginning, of at most so many positions (1 to size - 1), with the rest.
    rest: what must be fed after this; what it gives is the answer.
    """

    model: BatchedModel
    query: Any
    size: int
    split: Callable[[int], ForwardQuery] | None = None
    rest: ForwardQuery | None = None
    behind: int = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@dataclass(frozen=True, eq=False)
class JoinEffect:
    """Several coroutines that are waited for: all of them, or the first."""

    coros: tuple[Coro, ...]
    first: bool

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@dataclass(frozen=True, eq=False)
class PauseEffect:
    """A place where a request may be put on hold: nothing of the coroutine that awaits this is under way in a model."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


async def gather_coroutines(*coros: Coro) -> list[Any]:
    """All results, in order. The first that fails closes the others and raises here."""
    if coros:
        return await JoinEffect(coros, False)
    return []


async def race_coroutines(*coros: Coro) -> tuple[int, Any]:
    """(index, result) of the first to finish (lowest index on a tie); the others are closed."""
    if not coros:
        raise RequestError("race needs at least one coroutine")
    return await JoinEffect(coros, True)
