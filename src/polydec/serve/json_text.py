"""JSON texts of any size: written in pieces, so that other threads have their turn between two of them.

Python's encoder holds the interpreter's lock until a whole text is written, which takes seconds for an answer of some hundred
megabytes, and wants all of what it writes as objects, which are ten times as large. Here what is long is made row by row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

DEPTH = 8
"""Levels of lists and objects that are written piece by piece; a lazy row is written at once."""
SCALARS = 1024
"""Numbers or texts of a list that are written at once."""
PIECE = 1 << 16
"""Characters of a piece at least, where there are more to come."""


class LazyRows(Sequence[Any]):
    """Rows that are made when somebody looks at them.

    Args:
        make: Makes the row of an item.
        items: The items, one for each row.
    """

    def __init__(self, make: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._parts = [(make, items)]

    def __len__(self) -> int:
        return sum(len(items) for _, items in self._parts)

    def __iter__(self) -> Iterator[Any]:
        for make, items in self._parts:
            yield from map(make, items)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return list(self)[at]
        place = at + len(self) if at < 0 else at
        for make, items in self._parts:
            if place < len(items):
                return make(items[place])
            place -= len(items)
        raise IndexError(at)

    def __add__(self, other: LazyRows) -> LazyRows:
        """Append the rows of another sequence.

        Args:
            other: The rows that follow.

        Returns:
            A new sequence of both.
        """
        both = LazyRows(len, ())
        both._parts = [*self._parts, *other._parts]
        return both


Encode = Callable[[Any], str]


def _encoder(ascii_only: bool) -> Encode:
    return json.JSONEncoder(
        separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False, default=list
    ).encode


_ASCII, _UNICODE = _encoder(True), _encoder(False)


def json_pieces(value: Any, *, ascii_only: bool = False) -> Iterator[str]:
    """Write a value as JSON, piece by piece.

    Args:
        value: A JSON value, which may hold lazy rows.
        ascii_only: Whether other characters are escaped. Default False.

    Yields:
        Pieces of the text, in order.
    """
    held = list[str]()
    size = 0
    # Small parts are gathered: each piece costs a hand-over to the event loop.
    for part in _parts(value, DEPTH, _ASCII if ascii_only else _UNICODE):
        held.append(part)
        size += len(part)
        if size >= PIECE:
            yield "".join(held)
            held = list[str]()
            size = 0
    if held:
        yield "".join(held)


def json_text(value: Any) -> str:
    """The JSON text of a small value at once, in ASCII."""
    return _ASCII(value)


def json_line(value: Any) -> str:
    """The JSON text of a value, in ASCII and with spaces, as `json.dumps` writes it."""
    return json.dumps(value, allow_nan=False, default=list)


def _parts(value: Any, depth: int, encode: Encode) -> Iterator[str]:
    # Large values are opened, so that between two parts other threads may take the interpreter's
    # lock.
    if depth and isinstance(value, Mapping) and value:
        for at, (name, inner) in enumerate(value.items()):
            yield f"{',' if at else '{'}{encode(name)}:"
            yield from _parts(inner, depth - 1, encode)
        yield "}"
    elif depth and isinstance(value, (list, tuple, LazyRows)) and len(value):
        yield "["
        yield from _items(value, depth, encode)
        yield "]"
    else:
        yield encode(value)


def _items(rows: Sequence[Any], depth: int, encode: Encode) -> Iterator[str]:
    lazy = isinstance(rows, LazyRows)
    # Plain values: many at once, without the brackets around each portion.
    if not lazy and (rows[0] is None or isinstance(rows[0], (str, int, float))):
        for at in range(0, len(rows), SCALARS):
            yield f"{',' if at else ''}{encode(rows[at : at + SCALARS])[1:-1]}"
        return
    for at, row in enumerate(rows):
        if at:
            yield ","
        yield from _parts(row, 0 if lazy else depth - 1, encode)
