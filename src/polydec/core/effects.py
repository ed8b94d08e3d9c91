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
    """One query to a model.

    Attributes:
        model: The model that answers; queries of one model are merged into one pass.
        query: What the model is asked, in a form of its own.
        size: How many positions the query feeds.
        split: Of a prompt, which can be fed in parts: gives its beginning of at most so many
            positions (1 to size - 1), with the rest in `rest`. None: the query runs as one.
        rest: What must be fed after this query; its answer is then the answer. None: nothing.
        behind: How many positions stand before those of this query. They set how long the attention
            takes.
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
    """Several coroutines that are waited for: all of them, or the first.

    Attributes:
        coros: The coroutines, in the order of their results.
        first: Whether the first one to finish is enough; the others are then closed.
    """

    coros: tuple[Coro, ...]
    first: bool

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@dataclass(frozen=True, eq=False)
class PauseEffect:
    """A place where a request may be put on hold: nothing of the coroutine that awaits this is
    under way in a model.
    """

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


async def gather_coroutines(*coros: Coro) -> list[Any]:
    """All results, in order. The first that fails closes the others and raises here."""
    if coros:
        return await JoinEffect(coros, False)
    return []


async def race_coroutines(*coros: Coro) -> tuple[int, Any]:
    """Wait for the first of several coroutines to finish; the others are closed.

    Args:
        coros: The coroutines, at least one. Where several finish in the same step, the lowest index
            wins.

    Returns:
        Index and result of the one that finished.

    Raises:
        RequestError: No coroutine is given.
    """
    if not coros:
        raise RequestError("race needs at least one coroutine")
    return await JoinEffect(coros, True)
