"""What is open of a model, by weak references: some threads open sessions while others look at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class LiveReferences(Generic[T]):
    """Objects that are open, for as long as somebody holds them.

    A request is checked in any thread, which opens sessions, while the engine's thread goes through
    those that are open. Whoever goes through them gets the ones of one moment.
    """

    def __init__(self) -> None:
        self._objects = WeakValueDictionary[int, T]()

    def add_object(self, item: T) -> None:
        """Note an object that was opened."""
        self._objects[id(item)] = item

    def discard_object(self, item: T) -> None:
        """Forget an object that was closed."""
        self._objects.pop(id(item), None)

    def __iter__(self) -> Iterator[T]:
        # `valuerefs` copies in one step, in which no other thread runs; a loop over a WeakSet does
        # not, and ends with an error where an object is added meanwhile.
        found = (reference() for reference in self._objects.valuerefs())
        return iter([item for item in found if item is not None])

    def __len__(self) -> int:
        return len(self._objects)
