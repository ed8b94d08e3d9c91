"""A schema's keywords before it is compiled: numbers that the grammar library would round, and names that are none.

The library keeps numbers as doubles, and bounds of whole numbers as those of 64 bits. So a whole number beyond 2^53 may be
answered by a neighbour of it, and so may a decimal of more than 15 digits. Bounds as wide as that stand in schemas that
machines write ("any 64-bit integer"): they are drawn in a little, which leaves values out and lets none in. All other such
numbers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import isfinite
from typing import Any

from polydec.base.errors import RequestError

LIMIT = 2**53
"""All whole numbers up to this one are doubles."""

DIGITS = 15
POWER = 22
"""So many digits come back from a double as they went in, behind a power of ten that is a double
itself.
"""

WIDEST = 9 * 10**18
"""The widest bound: a little less than 2^63."""

VALUES = ("const", "enum")
UPPER = ("maximum", "exclusiveMaximum")
LOWER = ("minimum", "exclusiveMinimum")
EACH = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys behind which schemas stand by names of their own."""

SAYS_NOTHING = frozenset({"title", "description", "$comment", "default", "examples", "x-guidance"})
"""Keys behind which a number constrains nothing."""

TURNED = frozenset({"not", "if", "oneOf", "dependencies", "dependentRequired", "dependentSchemas"})
"""Keys by which fewer values of a part may be more of the whole."""


def restrict_number_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that allows nothing that `schema` does not, of which the library rounds no number.
    Raises RequestError, saying where, for one that cannot be kept to exactly, and where what is
    required is no name.
    """
    out = deepcopy(dict(schema))
    parts = list(_schemas(out, "#"))
    # Under `not` and its like a closer bound lets more values in, so bounds may not be moved then.
    turned = any(TURNED & part.keys() for _, part in parts)
    for where, part in parts:
        _check_names(where, part.get("required"))
        for key in VALUES:
            if key in part:
                part[key] = _exact(part[key], f"{where}: {key}")
        for key in (*UPPER, *LOWER):
            if key in part:
                part[key] = _bound(key, part[key], where, turned)
        # Without a type a bound speaks of numbers as well.
        kinds = part.get("type", "number")
        if "number" in (kinds if isinstance(kinds, list) else [kinds]):
            numbers = {k: part[k] for k in (*UPPER, *LOWER) if type(part.get(k)) in (int, float)}
            if why := edge_let_in(numbers):
                raise RequestError(f"json_schema at {where}: {why}")
        if "multipleOf" in part:  # the library refuses what it cannot count in
            part["multipleOf"] = _exact(part["multipleOf"], f"{where}: multipleOf")
    return out


def _schemas(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All that is, or may be referred to as, a schema."""
    if isinstance(value, list):
        for i, x in enumerate(value):
            yield from _schemas(x, f"{where}/{i}")
    elif isinstance(value, dict):
        yield where, value
        # Names of properties are not keywords: only their values are schemas.
        for key, x in value.items():
            if key in EACH and isinstance(x, dict):
                for name, part in x.items():
                    yield from _schemas(part, f"{where}/{key}/{name}")
            elif key not in VALUES and key not in SAYS_NOTHING:
                yield from _schemas(x, f"{where}/{key}")


def _check_names(where: str, names: Any) -> None:
    if isinstance(names, list) and not all(isinstance(x, str) for x in names):
        wrong = next(x for x in names if not isinstance(x, str))
        raise RequestError(
            f"json_schema at {where}: required holds {repr(wrong)[:60]}: it must be a list of names, which are texts"
        )


def _bound(key: str, value: Any, where: str, turned: bool) -> Any:
    """The bound, or a closer one where that leaves values out only. Raises RequestError where
    neither is exact, or what is left out would be all that lies between the bound and 0.
    """
    # A number that a double holds, or no number at all: nothing needs to be moved.
    if type(value) not in (int, float) or value != value or abs(value) <= LIMIT:
        return _exact(value, f"{where}: {key}")
    strict = key.startswith("exclusive")
    sign = 1 if key in UPPER else -1
    # An inclusive bound that is a double itself is exact.
    if abs(value) <= WIDEST and not strict and _survives(value) and float(value) == value:
        return int(value)
    # Moving the bound towards 0 would let values in, or leave all out.
    if turned or sign * value < 0:
        raise RequestError(_beyond(value, f"{where}: {key}"))
    if abs(value) > WIDEST:
        inner = WIDEST
    else:
        # An exclusive bound of whole numbers is the next number as an inclusive one.
        inner = abs(int(value)) - strict
    # So many decimal digits, and so many bits, have to go.
    tens = len(str(inner)) - DIGITS
    twos = inner.bit_length() - 53
    return sign * (inner - inner % (10**tens << max(0, twos - tens)))  # so that it is a double


def edge_let_in(bounds: Mapping[str, float]) -> str:
    """Why some bounds of numbers cannot be kept to, by their keywords; empty: they can.

    Where all numbers between two bounds begin with the same whole one, and that is left out as a
    bound, the library lets it in.
    """
    # The closest bounds on both sides decide.
    low = max((bounds[x] for x in LOWER if x in bounds), default=None)
    high = min((bounds[x] for x in UPPER if x in bounds), default=None)
    if low is None or high is None or not low < high:
        return ""
    for key, bound in (("exclusiveMinimum", low), ("exclusiveMaximum", high)):
        if bounds.get(key) == bound and float(bound).is_integer() and high - low < 1:
            return (
                f"{key} is {bound}, and what lies from {low} to {high} holds no whole number: the bound itself could not be "
                "left out, so take a wider range, or a list of values"
            )
    return ""


def _exact(value: Any, where: str) -> Any:
    """The value, whole numbers written as such. Raises RequestError for what the library would
    round.
    """
    if isinstance(value, list):
        return [_exact(x, where) for x in value]
    if isinstance(value, dict):
        return {name: _exact(x, where) for name, x in value.items()}
    if type(value) not in (int, float):
        return value
    if not _survives(value):
        raise RequestError(_beyond(value, where))
    if float(value).is_integer():
        return int(value)
    return value


def _survives(value: float) -> bool:
    """Whether a number is read by the library as what it is, and written so again."""
    if type(value) is float and not isfinite(value):
        return False
    if abs(value) <= LIMIT and value == int(value):
        return True
    # A whole number comes back if its digits without final zeros are few, and the power of ten is
    # exact.
    if type(value) is int:
        digits = str(abs(value)).rstrip("0")
        return len(digits) <= DIGITS and len(str(abs(value))) - len(digits) <= POWER
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, rest = mantissa.partition(".")
    rest = rest.rstrip("0")
    # then one division, or product, of two doubles gives the number
    return int(whole + rest) <= LIMIT and abs(int(power or "0") - len(rest)) <= POWER


def _beyond(value: float, where: str) -> str:
    return (
        f"json_schema at {where} holds {str(value)[:40]}: numbers are kept to exactly up to 2^53 ({LIMIT}), or with at most "
        f"{DIGITS} digits, so take another one, or a text"
    )
