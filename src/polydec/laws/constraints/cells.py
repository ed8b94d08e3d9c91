"""Values of one kind that fit some keywords, as data: what two of them have in common, and whether that is nothing.

A schema stands for a list of cells (see `exact`). What lies inside an array or an object is not looked at here: it is a
`Conjunction`, schemas by their numbers, each with whether the value must fit it or must not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

from polydec.laws.constraints.formats import FORMATS, LONGEST

Conjunction = tuple[tuple[bool, int], ...]
ANYTHING: Conjunction = ()
NOTHING: Conjunction = ((False, 0),)
"""Number 0 is the schema that everything fits."""


def conjoin_schemas(a: Conjunction, b: Conjunction) -> Conjunction:
    """Combine two conjunctions.

    Args:
        a: Conditions that a value must meet.
        b: More conditions.

    Returns:
        All conditions, each once; `NOTHING` where two of them contradict each other.
    """
    out = dict.fromkeys((*a, *b))
    # A schema that must and must not fit leaves nothing.
    if NOTHING[0] in out or any((not sign, number) in out for sign, number in out):
        return NOTHING
    return tuple(out)


@dataclass(frozen=True)
class PlainCell:
    """null, true and false, by their spelling."""

    values: frozenset[str] = frozenset({"null", "true", "false"})

    def meet_cell(self, other: PlainCell) -> PlainCell | None:
        values = self.values & other.values
        if values:
            return PlainCell(values)
        return None


@dataclass(frozen=True)
class NumberCell:
    """Numbers that fit some keywords.

    Attributes:
        kind: "number", "integer", or "fraction" (a number that is no integer).
        only: Some numbers; None: any.
        low: Lower bound; None: none.
        low_open: Whether the lower bound itself is left out.
        high: Upper bound; None: none.
        high_open: Whether the upper bound itself is left out.
        multiples: What each number is a multiple of.
        others: What none is a multiple of.
        at: The place in the schema by which it is hard to say.
    """

    kind: str = "number"
    only: frozenset[Any] | None = None
    low: float | None = None
    low_open: bool = False
    high: float | None = None
    high_open: bool = False
    multiples: tuple[float, ...] = ()
    others: tuple[float, ...] = ()
    at: str = ""

    def fits_value(self, value: Any) -> bool:
        if isinstance(value, float):
            whole = float(value).is_integer()
        else:
            whole = True
        return (whole is not (self.kind == "fraction") if self.kind != "number" else True) and (
            (self.only is None or value in self.only)
            and (self.low is None or (value > self.low if self.low_open else value >= self.low))
            and (self.high is None or (value < self.high if self.high_open else value <= self.high))
            and all(_multiple(value, x) for x in self.multiples)
            and not any(_multiple(value, x) for x in self.others)
        )

    def meet_cell(self, other: NumberCell) -> NumberCell | None:
        # Integers and fractions have nothing in common; a number may be either.
        kinds = {self.kind, other.kind} - {"number"}
        if len(kinds) == 2:
            return None
        # Bounds compare as pairs: of equal numbers the open bound is the narrower one.
        low = max(_lows(self), _lows(other))
        high = min(_highs(self), _highs(other))
        only = _shared(self.only, other.only)
        out = NumberCell(
            next(iter(kinds), "number"),
            only,
            None if low[0] == -_INFINITE else low[0],
            low[1] == 1,
            None if high[0] == _INFINITE else high[0],
            high[1] == -1,
            # A dict keeps each multiple once, in order.
            tuple(dict.fromkeys((*self.multiples, *other.multiples))),
            tuple(dict.fromkeys((*self.others, *other.others))),
            self.at or other.at,
        )
        return out.settled_value()

    def settled_value(self) -> NumberCell | None:
        """None where it holds nothing, as far as is seen here."""
        only = self.only
        if self.low is not None and self.high is not None:
            if self.low > self.high:
                return None
            # An interval of one point, where both ends are included, is that number.
            if self.low == self.high and only is None:
                only = frozenset({self.low})
            # Few integers are listed one by one: a list can be checked against all other keywords.
            if self.kind == "integer":
                if self.low_open:
                    first = floor(self.low) + 1
                else:
                    first = ceil(self.low)
                if self.high_open:
                    last = ceil(self.high) - 1
                else:
                    last = floor(self.high)
                if first > last:
                    return None
                # A short range is listed: lists meet other conditions by trying each number.
                if only is None and last - first < SMALL:
                    only = frozenset(range(first, last + 1))
        if only is None:
            return self
        fitting = frozenset(x for x in only if replace(self, only=None).fits_value(x))
        if fitting:
            return NumberCell(only=fitting)
        return None


SMALL = 64
"""So many integers are named one by one."""
_INFINITE = float("inf")


def _lows(cell: NumberCell) -> tuple[float, int]:
    return (-_INFINITE if cell.low is None else cell.low, 1 if cell.low_open else 0)


def _highs(cell: NumberCell) -> tuple[float, int]:
    return (_INFINITE if cell.high is None else cell.high, -1 if cell.high_open else 0)


def _multiple(value: Any, of: Any) -> bool:
    """Whether one number is a multiple of another, as JSON schema's usual reader counts it."""
    # The usual reader divides floats and looks for a whole quotient.
    if isinstance(of, float):
        quotient = value / of
        if abs(quotient) != _INFINITE:
            return quotient == int(quotient)
        return False
    return value % of == 0


def _shared(a: frozenset[Any] | None, b: frozenset[Any] | None) -> frozenset[Any] | None:
    if a is None:
        return b
    if b is None:
        return a
    return a & b


@dataclass(frozen=True)
class StringCell:
    """Strings that fit some keywords.

    Attributes:
        only: Some strings; None: any.
        less: Strings that are left out.
        low: Least length in characters.
        high: Largest length; None: none.
        patterns: Expressions that each string matches.
        formats: Formats that each string has.
        other_patterns: Expressions that none matches.
        other_formats: Formats that none has.
        at: The place in the schema by which it is hard to say.
    """

    only: frozenset[str] | None = None
    less: frozenset[str] = frozenset()
    low: int = 0
    high: int | None = None
    patterns: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    other_patterns: tuple[str, ...] = ()
    other_formats: tuple[str, ...] = ()
    at: str = ""

    def fits_text(self, text: str) -> bool:
        return (
            (self.only is None or text in self.only)
            and text not in self.less
            and self.low <= len(text)
            and (self.high is None or len(text) <= self.high)
            and all(has_pattern_match(x, text) for x in self.patterns)
            and not any(has_pattern_match(x, text) for x in self.other_patterns)
            and all(has_text_format(x, text) for x in self.formats)
            and not any(has_text_format(x, text) for x in self.other_formats)
        )

    def meet_cell(self, other: StringCell) -> StringCell | None:
        out = StringCell(
            _shared(self.only, other.only),
            self.less | other.less,
            max(self.low, other.low),
            _least(self.high, other.high),
            tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            tuple(dict.fromkeys((*self.formats, *other.formats))),
            tuple(dict.fromkeys((*self.other_patterns, *other.other_patterns))),
            tuple(dict.fromkeys((*self.other_formats, *other.other_formats))),
            self.at or other.at,
        )
        return out.settled_value()

    def settled_value(self) -> StringCell | None:
        """None where it holds nothing, as far as is seen here."""
        if self.high is not None and self.low > self.high:
            return None
        # The same expression must and must not match.
        if set(self.patterns) & set(self.other_patterns):
            return None
        if set(self.formats) & set(self.other_formats):
            return None
        # The only string of length 0.
        if self.only is None and self.high == 0:
            only = frozenset({""})
        else:
            only = self.only
        if only is None:
            return self
        # A list is checked here, so that none of the other keywords is needed any more.
        fitting = frozenset(x for x in only if replace(self, only=None).fits_text(x))
        if fitting:
            return StringCell(fitting)
        return None

    @property
    def free(self) -> bool:
        """Whether it holds all strings."""
        return replace(self, at="") == StringCell()


def has_pattern_match(pattern: str, text: str) -> bool:
    """Tell whether an expression is found in a text.

    Args:
        pattern: The expression, not anchored.
        text: The text.

    Returns:
        True where it is found.
    """
    return re.search(pattern, text) is not None


def has_text_format(name: str, text: str) -> bool:
    """Tell whether a text has a format.

    Args:
        name: Name of the format, one of FORMATS.
        text: The text.

    Returns:
        True where all of it matches and it is not too long.
    """
    return re.fullmatch(FORMATS[name], text) is not None and len(text) <= LONGEST.get(
        name, len(text)
    )


def _least(a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    if b is None:
        return a
    return min(a, b)


@dataclass(frozen=True)
class ContainsRequirement:
    """Some items of an array fit a schema: from `low` to `high` of them.

    Attributes:
        item: What they fit.
        start: Place from which items are counted.
        low: Least number of such items.
        high: Largest number of such items; None: any.
        keyword: Keyword that asks for it.
        at: Place of the schema that asks for it.
    """

    item: Conjunction
    start: int
    low: int
    high: int | None
    keyword: str
    at: str


@dataclass(frozen=True)
class ArrayCell:
    """Arrays that fit some keywords.

    Attributes:
        prefix: What the first items fit.
        rest: What the items behind them fit.
        low: Least number of items.
        high: Largest number of items; None: any.
        held: What some of the items are.
        distinct: Whether all items differ; None: no matter.
        at: Place of the schema that asks for that.
    """

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = ANYTHING
    low: int = 0
    high: int | None = None
    held: tuple[ContainsRequirement, ...] = ()
    distinct: bool | None = None
    at: str = ""

    def item_cell(self, place: int) -> Conjunction:
        if place < len(self.prefix):
            return self.prefix[place]
        return self.rest

    def meet_cell(self, other: ArrayCell) -> ArrayCell | None:
        if {self.distinct, other.distinct} == {True, False}:
            return None
        # Item by item as far as either has a prefix; behind that the rests meet.
        places = max(len(self.prefix), len(other.prefix))
        out = ArrayCell(
            tuple(conjoin_schemas(self.item_cell(i), other.item_cell(i)) for i in range(places)),
            conjoin_schemas(self.rest, other.rest),
            max(self.low, other.low),
            _least(self.high, other.high),
            tuple(dict.fromkeys((*self.held, *other.held))),
            other.distinct if self.distinct is None else self.distinct,
            self.at or other.at,
        )
        if out.high is not None and out.low > out.high:
            return None
        return out


@dataclass(frozen=True)
class ExtraProperty:
    """There is a property with a certain name and value.

    Attributes:
        names: Names that it does not have.
        patterns: Expressions that its name does not match.
        name: What its name fits.
        value: What its value fits.
        keyword: Keyword that asks for it.
        at: Place of the schema that asks for it.
    """

    names: frozenset[str]
    patterns: tuple[str, ...]
    name: Conjunction
    value: Conjunction
    keyword: str
    at: str

    def may_be(self, name: str) -> bool:
        """Whether it may have this name, as far as `names` and `patterns` tell."""
        return name not in self.names and not any(has_pattern_match(x, name) for x in self.patterns)


@dataclass(frozen=True)
class ObjectCell:
    """Objects that fit some keywords.

    Attributes:
        named: Values by name, in order.
        required: Names that must be there.
        patterns: Values by expressions over other names.
        rest: Values of all other names.
        low: Least number of properties.
        high: Largest number of properties; None: any.
        allowed: What every name fits.
        extra: What some property is.
        at: Place of the schema that counts them.
    """

    named: tuple[tuple[str, Conjunction], ...] = ()
    required: tuple[str, ...] = ()
    patterns: tuple[tuple[str, Conjunction], ...] = ()
    rest: Conjunction = ANYTHING
    low: int = 0
    high: int | None = None
    allowed: Conjunction = ANYTHING
    extra: tuple[ExtraProperty, ...] = ()
    at: str = ""

    def member_cell(self, name: str) -> Conjunction:
        """What the value of a name fits."""
        known = dict(self.named)
        if name in known:
            return known[name]
        # A name without an entry of its own meets all patterns that match it, or the rest.
        fitting = [value for pattern, value in self.patterns if has_pattern_match(pattern, name)]
        if not fitting:
            return self.rest
        out = ANYTHING
        for value in fitting:
            out = conjoin_schemas(out, value)
        return out

    def meet_cell(self, other: ObjectCell) -> ObjectCell | None:
        names = dict.fromkeys(name for name, _ in (*self.named, *other.named))
        patterns = dict.fromkeys(pattern for pattern, _ in (*self.patterns, *other.patterns))
        mine = dict(self.patterns)
        others = dict(other.patterns)
        out = ObjectCell(
            tuple(
                (name, conjoin_schemas(self.member_cell(name), other.member_cell(name)))
                for name in names
            ),
            tuple(dict.fromkeys((*self.required, *other.required))),
            # A pattern of one side meets the rest of the other where that has no such pattern.
            tuple(
                (x, conjoin_schemas(mine.get(x, self.rest), others.get(x, other.rest)))
                for x in patterns
            ),
            conjoin_schemas(self.rest, other.rest),
            max(self.low, other.low),
            _least(self.high, other.high),
            conjoin_schemas(self.allowed, other.allowed),
            tuple(dict.fromkeys((*self.extra, *other.extra))),
            self.at or other.at,
        )
        # More required names than properties may be there: no such object.
        if out.high is not None:
            most = out.high
        else:
            most = len(out.required)
        if max(out.low if out.high is not None else 0, len(out.required)) > most:
            return None
        return out


Cell = PlainCell | NumberCell | StringCell | ArrayCell | ObjectCell
KINDS: tuple[Cell, ...] = (PlainCell(), NumberCell(), StringCell(), ArrayCell(), ObjectCell())
"""All values."""


def intersect_cells(a: Collection[Any], b: Collection[Any]) -> list[Any]:
    """Intersect two lists of cells.

    Args:
        a: Cells of any kinds.
        b: More cells.

    Returns:
        The non-empty intersections of pairs of one kind, each once.
    """
    out = dict[Any, None]()
    for x in a:
        for y in b:
            if type(x) is type(y):
                cell = x.meet_cell(y)
                if cell is not None:
                    out[cell] = None
    return list(out)
