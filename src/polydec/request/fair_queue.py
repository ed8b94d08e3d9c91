"""Requests that wait their turn: in a line for each client, so that no client waits for all that
another one has asked."""

from __future__ import annotations

from collections import Counter, deque
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First come first served within a line; between lines, whoever has fewest answers running is
    next. It may be called from several threads."""

    def __init__(self) -> None:
        self._lines = dict[str, deque[tuple[int, T]]]()
        self._lock = Lock()
        self._count = 0

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._lines.values()))

    def add_item(self, client: str, item: T) -> None:
        """Add to the end of a client's line.

        Args:
            client: Whose line.
            item: What waits.
        """
        with self._lock:
            self._count += 1
            self._lines.setdefault(client, deque()).append((self._count, item))

    def first_client(self, running: Counter[str]) -> tuple[str, T]:
        """Whose turn it is, and what waits there; running: answers by client. There must be one."""
        with self._lock:
            client = self._next(running)
            return client, self._lines[client][0][1]

    def take_first(self, client: str) -> T:
        """The first one of this client, which waits no more."""
        with self._lock:
            return self._taken(client)

    def pop_first(self, running: Counter[str]) -> T | None:
        """What `first_client` and `take_first` give, for whoever is not alone in taking; None where nothing
        waits."""
        with self._lock:
            if self._lines:
                return self._taken(self._next(running))
            return None

    def _next(self, running: Counter[str]) -> str:
        return min(self._lines, key=lambda name: (running[name], self._lines[name][0][0]))

    def _taken(self, client: str) -> T:
        line = self._lines[client]
        _, item = line.popleft()
        if not line:
            del self._lines[client]
        return item


def can_start_answers(client: str, count: int, running: Counter[str], most: int) -> bool:
    """Whether so many more answers of a client may run beside those that do: there is room for
    them, or others take more than their shares and the client stays within its own.

    Args:
        client: Who asks.
        count: Answers that would be started.
        running: Answers that run, by client.
        most: Answers that may run at a time.

    Returns:
        True where they may.
    """
    if running.total() + count <= most:
        return True
    # Nobody's answers beyond an equal share keep another client from its own.
    share = max(1, most // len(running.keys() | {client}))
    taken = sum(min(own, share) for own in running.values())
    return running[client] + count <= share and taken + count <= most
