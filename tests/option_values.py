"""Other values of a declared option: what a test sets to see that the option reaches what it names."""

from collections.abc import Iterator, Mapping
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import OneOf, Option

WHOLE = (1, 2, 4, 0, 3, 8, 16, 32)
SHARES = (0.5, 0.9, 0.1, 0.999, 0.0, 1.0, 2.0, 8.0)
LISTS = ((1, 1), (2, 1), (1,), (3,), (2, 2, 2))
WORDS = ("ab", "b", "a")
"""What is tried of each type, as far as the option allows it."""


def other_values(option: Option) -> Iterator[Any]:
    """Legal values of an option besides its default, the likeliest to show first.

    A switch has the other one, a choice each other one; a number what stands above and what is derived from the default.
    """
    seen = [option.default]
    for value in _candidates(option):
        try:
            legal = option.convert_value(value)
        except RequestError:
            continue
        if legal not in seen:
            seen.append(legal)
            yield legal


def _candidates(option: Option) -> Iterator[Any]:
    for limit in option.limits:
        if isinstance(limit, OneOf):
            yield from limit.choices
            return
    number = option.default if option.kind in (int, float) else None
    if option.kind is bool:
        yield from (True, False)
    elif option.kind is int:
        yield from WHOLE
        yield from () if number is None else (number + 1, 2 * number)
    elif option.kind is float:
        yield from () if number is None else (number / 2, 2 * number)
        yield from SHARES
    elif option.kind is tuple:
        yield from LISTS
    elif option.kind is str:
        yield from WORDS
    elif option.kind is Mapping:
        yield {1: 5.0}
    if option.optional:
        yield None
