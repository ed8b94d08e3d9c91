"""Cells as a schema of the keywords that the grammar library has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

from polydec.base.options import short_repr
from polydec.laws.constraints.bounded import edge_let_in
from polydec.laws.constraints.cases import (
    ContradictorySchemaError,
    InexactSchemaError,
    SchemaReader,
)
from polydec.laws.constraints.cells import (
    ANYTHING,
    KINDS,
    NOTHING,
    SMALL,
    ArrayCell,
    Cell,
    Conjunction,
    ContainsRequirement,
    ExtraProperty,
    NumberCell,
    ObjectCell,
    PlainCell,
    StringCell,
    conjoin_schemas,
    has_pattern_match,
)
from polydec.laws.constraints.formats import LONGEST, format_pattern

MOST_LISTS = 400
MOST_CHOICES = 400
"""Lists that are named one by one; ways to choose some of the names of an object."""
MOST_PARTS = 4000
"""Parts of what is written."""


@dataclass(frozen=True, eq=False)
class _EnumeratedArrays:
    """Arrays that are named one by one, as JSON values."""

    values: tuple[Any, ...]


class SchemaWriter:
    """What a reader has read, in other words."""

    def __init__(self, reader: SchemaReader) -> None:
        self._reader = reader
        self._final = dict[Conjunction, list[Any]]()
        self._alive = set[Conjunction]()
        self._names = dict[Conjunction, str]()
        self._written = dict[str, Any]()

    def write_schema(self) -> dict[str, Any]:
        """Write the schema.

        Returns:
            A schema of the same values, with its named parts under `$defs`.

        Raises:
            InexactSchemaError: It cannot be said, or has too many parts.
            ContradictorySchemaError: It holds no value.
        """
        # Parts are resolved until no new one comes up; their order does not matter.
        root = self._reader.root
        waiting = [root]
        while waiting:
            what = waiting.pop()
            if what in self._final or what == NOTHING:
                continue
            # Schemas may refer to one another in ever new combinations, of which there is no end.
            if len(self._final) > MOST_PARTS:
                raise InexactSchemaError("#", f"it comes apart into more than {MOST_PARTS} parts")
            cells = self._final[what] = list(self._resolved(self._reader.fitting_cells(what)))
            waiting += [child for cell in cells for child, _ in _children(cell)]
        self._find_alive()
        # A part may be in a circle that never ends; the root must hold some finite value.
        if root not in self._alive:
            raise ContradictorySchemaError("holds no value: what it says is contradictory")
        out = self._spelled(root, top=True)
        return {**out, **({"$defs": self._written} if self._written else {})}

    def _find_alive(self) -> None:
        """Which parts have a finite value."""
        # A fixed point: a part has a finite value once a cell of it needs only such parts.
        looking = True
        while looking:
            looking = False
            for what, cells in self._final.items():
                if what not in self._alive and any(self._lives(cell) for cell in cells):
                    self._alive.add(what)
                    looking = True

    def _lives(self, cell: Any) -> bool:
        return all(child in self._alive for child, needed in _children(cell) if needed)

    # ---- in words ----

    def _part(self, what: Conjunction) -> Any:
        if what == ANYTHING:
            return True
        if what not in self._alive:
            return False
        cells = self._final[what]
        # Parts of scalars are short and are written where they stand; others are named, so that
        # they may need themselves.
        if all(isinstance(x, (PlainCell, NumberCell, StringCell)) for x in cells):
            return self._spelled(what)
        if what not in self._names:
            name = self._names[what] = f"part{len(self._names)}"
            # The name is there before the part is written, for a part that needs itself.
            self._written[name] = None
            self._written[name] = self._spelled(what)
        return {"$ref": f"#/$defs/{self._names[what]}"}

    def _spelled(self, what: Conjunction, top: bool = False) -> dict[str, Any]:
        cells = [x for x in self._final[what] if self._lives(x)]
        # All kinds without a condition: any value.
        if all(kind in cells for kind in KINDS):
            return {}
        values = list[Any]()
        # Lists of values become one enum, conditions one alternative each.
        options = list[dict[str, Any]]()
        for cell in cells:
            if isinstance(cell, PlainCell):
                values += [_PLAIN[x] for x in ("null", "true", "false") if x in cell.values]
            elif isinstance(cell, _EnumeratedArrays):
                values += cell.values
            elif isinstance(cell, (NumberCell, StringCell)) and cell.only is not None:
                values += sorted(cell.only)
            elif isinstance(cell, StringCell):
                options.append(_string(cell))
            elif isinstance(cell, ArrayCell):
                options.append(self._array(cell))
            elif isinstance(cell, ObjectCell):
                options.append(self._object(cell))
        options += _numbers([x for x in cells if isinstance(x, NumberCell) and x.only is None])
        if values:
            options.append({"enum": values})
        if len(options) == 1:
            return options[0]
        return {"anyOf": options}

    def _array(self, cell: ArrayCell) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "array"}
        if cell.prefix:
            out["prefixItems"] = [self._part(x) for x in cell.prefix]
        if cell.rest != ANYTHING:
            out["items"] = self._part(cell.rest)
        if cell.low:
            out["minItems"] = cell.low
        if cell.high is not None:
            out["maxItems"] = cell.high
        return out

    def _object(self, cell: ObjectCell) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "object"}
        if cell.named:
            out["properties"] = {name: self._part(value) for name, value in cell.named}
        if cell.required:
            out["required"] = list(cell.required)
        if patterns := self._written_patterns(cell):
            out["patternProperties"] = patterns
        out["additionalProperties"] = self._part(cell.rest)
        if cell.low:
            out["minProperties"] = cell.low
        if cell.high is not None:
            out["maxProperties"] = cell.high
        return out

    def _written_patterns(self, cell: ObjectCell) -> dict[str, Any]:
        out = dict[str, Any]()
        for pattern, value in cell.patterns:
            # A cell's own entry of a name holds alone; in a schema the name meets its patterns too.
            others = [
                name
                for name, own in cell.named
                if has_pattern_match(pattern, name)
                and conjoin_schemas(own, value) != own
                and not self._void(own)
            ]
            if not others:
                out[pattern] = self._part(value)
                continue
            # Names that match it are as forbidden as all that no pattern matches. Of several
            # patterns none goes: the grammar library refuses those that meet in one name.
            forbidden = self._void(value) and self._void(cell.rest)
            if not forbidden or len(cell.patterns) > 1:
                raise InexactSchemaError(
                    cell.at,
                    f"patternProperties or propertyNames has {short_repr(pattern)}, which matches the property "
                    f"{short_repr(others[0])}, and the two say different things of it: say both of the property itself",
                )
        return out

    # ---- what the library has no keyword for ----

    def _resolved(self, cells: Sequence[Cell]) -> Iterator[Any]:
        count = 0
        for cell in _joined(cells):
            # An array or object may come apart into several, where a condition holds for one place
            # or another.
            found: Iterable[Any] = (cell,)
            if isinstance(cell, ArrayCell):
                found = self._arrays(cell)
            elif isinstance(cell, ObjectCell):
                found = self._objects(cell)
            for out in found:
                count += 1
                if count > MOST_PARTS:
                    raise InexactSchemaError(
                        "#", f"it comes apart into more than {MOST_PARTS} parts"
                    )
                yield out

    def _void(self, what: Conjunction) -> bool:
        return self._reader.is_empty(what)

    def _arrays(self, cell: ArrayCell) -> Iterator[Any]:
        cell = self._shortened(cell)
        # Requirements on some items are resolved one by one, each into arrays without it.
        for held in cell.held:
            rest = tuple(x for x in cell.held if x is not held)
            for some in self._holding(replace(cell, held=rest), held):
                yield from self._arrays(some)
            return
        # Items that differ anyhow, or at most one: uniqueItems says nothing.
        if cell.distinct is None or (
            cell.distinct and ((cell.high is not None and cell.high <= 1) or self._differ(cell))
        ):
            yield replace(cell, distinct=None, at="")
            return
        # Otherwise the arrays are listed, where they are few.
        lists = self._lists(cell)
        if lists is None:
            raise InexactSchemaError(
                cell.at,
                "uniqueItems is kept where the items come from a short list of values (enum), or there is at most one "
                f"(maxItems), with at most {MOST_LISTS} lists of them",
            )
        if lists:
            yield _EnumeratedArrays(tuple(lists))

    def _shortened(self, cell: ArrayCell) -> ArrayCell:
        """It ends before the first item that nothing fits."""
        if cell.high is None:
            last = len(cell.prefix) + 1
        else:
            last = min(cell.high, len(cell.prefix) + 1)
        for i in range(last):
            if self._void(cell.item_cell(i)):
                return replace(cell, prefix=cell.prefix[:i], rest=ANYTHING, high=i)
        return cell

    def _differ(self, cell: ArrayCell) -> bool:
        """Whether no two items can be equal."""
        if cell.high is None or cell.high > len(cell.prefix):
            return False
        pairs = combinations(cell.prefix[: cell.high], 2)
        return all(self._void(conjoin_schemas(a, b)) for a, b in pairs)

    def _lists(self, cell: ArrayCell) -> list[Any] | None:
        """The arrays whose items differ, or do not; None: too many, or no list of values."""
        places = list[list[Any]]()
        last = cell.high
        # Without a bound, distinct items end where the values do.
        if last is None:
            values = self._values(cell.rest)
            if values is None or not cell.distinct:
                return None
            last = len(cell.prefix) + len(values)
        for i in range(min(last, MOST_LISTS)):
            values = self._values(cell.item_cell(i))
            if values is None:
                return None
            places.append(values)
        out = list[Any]()
        waiting = [list[Any]()]
        # Beginnings grow by one item at a time, so short arrays come first.
        while waiting:
            # A walk in breadth, so that shorter lists come first.
            begun = waiting.pop(0)
            keys = [_key(x) for x in begun]
            if len(begun) >= cell.low and (len(set(keys)) == len(keys)) is cell.distinct:
                out.append(begun)
            # Too many to list: the caller then describes them in another way.
            if len(out) > MOST_LISTS or len(waiting) > MOST_LISTS * 4:
                return None
            if len(begun) < len(places):
                waiting += [
                    [*begun, x]
                    for x in places[len(begun)]
                    if not cell.distinct or _key(x) not in keys
                ]
        return out

    def _values(self, what: Conjunction) -> list[Any] | None:
        """The values of a part, where they are few and have no parts."""
        out = list[Any]()
        for cell in self._reader.fitting_cells(what):
            if isinstance(cell, PlainCell):
                out += [_PLAIN[x] for x in sorted(cell.values)]
            elif isinstance(cell, (NumberCell, StringCell)) and cell.only is not None:
                out += sorted(cell.only)
            else:
                return None
        if len(out) <= SMALL:
            return list({_key(x): x for x in out}.values())
        return None

    def _holding(self, cell: ArrayCell, held: ContainsRequirement) -> Iterator[ArrayCell]:
        """The arrays of which so many items are so."""
        # Any item counts: a bound on the length.
        if held.item == ANYTHING:
            more = ArrayCell(
                low=held.start + held.low if held.low else 0,
                high=None if held.high is None else held.start + held.high,
            )
            met = cell.meet_cell(more)
            yield from () if met is None else (met,)
            return
        if held.high is not None and held.low > held.high:
            return
        if held.high == 0:
            yield from self._none_is(cell, held)
            return
        # No bound: nothing is asked for.
        if held.low == 0 and held.high is None:
            yield cell
            return
        # No item can be so: possible only where none is needed.
        if self._void(held.item):
            yield from () if held.low else (cell,)
            return
        behind = [*cell.prefix[held.start :], cell.rest]
        # Every item is so: a bound on the length, too.
        if all(self._surely(x, held.item) for x in behind):
            if held.high is None:
                most = None
            else:
                most = held.start + held.high
            met = cell.meet_cell(ArrayCell(low=held.start + held.low if held.low else 0, high=most))
            yield from () if met is None else (met,)
            return
        surely = sum(
            self._surely(cell.item_cell(i), held.item)
            for i in range(held.start, min(cell.low, 1000))
        )
        # As many as are needed are so in any case.
        if held.high is None and surely >= held.low:
            yield cell
            return
        last = cell.high
        if last is None and self._void(conjoin_schemas(cell.rest, held.item)):
            last = len(cell.prefix)  # only these can be
        if last is None or not isinstance(last, int):
            raise InexactSchemaError(
                held.at,
                f"{held.keyword} is kept where there are few items (maxItems), or where each must be so: that only some of "
                "them are cannot be said",
            )
        yield from self._chosen(cell, held, last)

    def _surely(self, what: Conjunction, item: Conjunction) -> bool:
        """Whether all that fits one fits the other as well."""
        return all(
            self._void(conjoin_schemas(what, ((not sign, number),))) for sign, number in item
        )

    def _none_is(self, cell: ArrayCell, held: ContainsRequirement) -> Iterator[ArrayCell]:
        if len(held.item) != 1:
            raise InexactSchemaError(
                held.at, f"{held.keyword} is too intricate here: make it simpler"
            )
        # The negation of one condition is one condition; of several it would be an alternative.
        ((sign, number),) = held.item
        met = cell.meet_cell(ArrayCell((ANYTHING,) * held.start, ((not sign, number),)))
        yield from () if met is None else (met,)

    def _chosen(self, cell: ArrayCell, held: ContainsRequirement, last: int) -> Iterator[ArrayCell]:
        """By the places of those that are so."""
        if len(held.item) != 1:
            raise InexactSchemaError(
                held.at, f"{held.keyword} is too intricate here: make it simpler"
            )
        ((sign, number),) = held.item
        count = 0
        places = range(held.start, last)
        if held.high is None:
            most = held.low
        else:
            most = min(held.high, len(places))
        for many in range(held.low, most + 1):
            # One array for each choice of the places whose items are so; with an upper bound all
            # others must not be.
            for chosen in combinations(places, many):
                count += 1
                if count > MOST_CHOICES:
                    raise InexactSchemaError(
                        held.at, f"{held.keyword} leaves too many choices of items here"
                    )
                # Where there is a most, all other items must be known not to fit.
                if held.high is None:
                    other = ANYTHING
                else:
                    other = ((not sign, number),)
                prefix = tuple(
                    held.item if i in chosen else other if i >= held.start else ANYTHING
                    # Places before `start` do not count: any item may stand there.
                    for i in range(last if other else max(chosen, default=-1) + 1)
                )
                met = cell.meet_cell(ArrayCell(prefix, other, low=max(chosen, default=-1) + 1))
                if met is not None:
                    yield met

    # ---- objects ----

    def _objects(self, cell: ObjectCell) -> Iterator[ObjectCell]:
        # Required names get an entry of their own, so that their values can be looked at.
        named = [*cell.named]
        known = dict(named)
        named += [(x, cell.member_cell(x)) for x in cell.required if x not in known]
        cell = self._allowed(replace(cell, named=tuple(named)))
        # Requirements on some property are resolved one by one.
        for extra in cell.extra:
            left = replace(cell, extra=tuple(x for x in cell.extra if x is not extra))
            for some in self._having(left, extra):
                yield from self._objects(some)
            return
        if any(self._void(cell.member_cell(x)) for x in cell.required):
            return
        yield from self._counted(cell)

    def _allowed(self, cell: ObjectCell) -> ObjectCell:
        """With names that may be, as values of names and of expressions."""
        texts = [x for x in self._reader.fitting_cells(cell.allowed) if isinstance(x, StringCell)]
        if any(x.free for x in texts):
            return replace(cell, allowed=ANYTHING)
        # Names that are listed, allowed or left out, are decided one by one; all others by an
        # expression.
        free = [x for x in texts if x.only is None]
        listed = dict.fromkeys(
            name for x in texts for name in sorted((x.only or frozenset()) | x.less)
        )
        known = dict(cell.named)
        names = [*known, *(x for x in listed if x not in known)]
        named = tuple(
            (x, cell.member_cell(x) if any(y.fits_text(x) for y in texts) else NOTHING)
            for x in names
        )
        # Only listed names are allowed.
        if not free:
            listed_only = replace(cell, named=named, patterns=(), rest=NOTHING)
            return replace(listed_only, allowed=ANYTHING)
        # All names in one expression, as `patternProperties` takes them.
        one = "|".join(f"(?:{_one_pattern(x, cell.at)})" for x in free)
        if cell.patterns:
            # The same expressions on both sides: then names that the patterns leave are forbidden
            # anyway.
            if set(dict(cell.patterns)) == {_one_pattern(x, cell.at) for x in free}:
                return replace(cell, named=named, rest=NOTHING, allowed=ANYTHING)
            raise InexactSchemaError(
                cell.at,
                "propertyNames beside patternProperties is kept where both say the same expressions: leave one of them out",
            )
        return replace(
            cell, named=named, patterns=((one, cell.rest),), rest=NOTHING, allowed=ANYTHING
        )

    def _having(self, cell: ObjectCell, extra: ExtraProperty) -> Iterator[ObjectCell]:
        """The objects that have some such property."""
        texts = [x for x in self._reader.fitting_cells(extra.name) if isinstance(x, StringCell)]
        listed = [x.only for x in texts if x.only is not None]
        names = dict.fromkeys(name for name, _ in cell.named)
        # Any further property: a matter of counting.
        if extra.name == extra.value == ANYTHING and not extra.patterns and not self._closed(cell):
            yield from self._more(cell, extra)
            return
        if len(listed) == len(texts):
            names |= dict.fromkeys(name for some in listed for name in sorted(some))
        elif not self._closed(cell):
            raise InexactSchemaError(
                extra.at,
                f"{extra.keyword} is turned round here (by not, if, oneOf): that some property breaks it can be said where all "
                "names are known (additionalProperties false)",
            )
        # One object for each name that the property may have.
        for name in names:
            if extra.may_be(name) and any(x.fits_text(name) for x in texts):
                met = cell.meet_cell(ObjectCell(((name, extra.value),), (name,)))
                if met is not None and not self._void(met.member_cell(name)):
                    yield met

    def _more(self, cell: ObjectCell, extra: ExtraProperty) -> Iterator[ObjectCell]:
        """The objects with more properties than they have of some names."""
        names = [x for x in sorted(extra.names) if not self._void(cell.member_cell(x))]
        maybe = [x for x in names if x not in cell.required]
        if len(maybe) > 6:
            raise InexactSchemaError(
                extra.at,
                f"{extra.keyword} is turned round here (by not, if, oneOf): this is kept to with at most 6 names that are not "
                "required",
            )
        # The object has more properties than the names that it has of these: one object for each
        # choice of them.
        sure = len(names) - len(maybe)
        for count in range(len(maybe) + 1):
            for chosen in combinations(maybe, count):
                absent = tuple((x, NOTHING) for x in maybe if x not in chosen)
                more = ObjectCell(absent, chosen, low=sure + count + 1, at=extra.at)
                met = cell.meet_cell(more)
                if met is not None:
                    yield met

    def _closed(self, cell: ObjectCell) -> bool:
        return self._void(cell.rest) and all(self._void(x) for _, x in cell.patterns)

    def _counted(self, cell: ObjectCell) -> Iterator[ObjectCell]:
        """With as many properties as may be."""
        if not cell.low and cell.high is None:
            yield replace(cell, at="")
            return
        # Names that may be there or not: what is counted beyond the required ones.
        known = [name for name, value in cell.named if name not in cell.required]
        maybe = [name for name in known if not self._void(cell.member_cell(name))]
        sure = len(cell.required)
        closed = self._closed(cell)
        low = max(0, cell.low - sure)
        if cell.high is None:
            high = None
        else:
            high = cell.high - sure
        if high is not None and high < 0:
            return
        # No other names: the counts are choices among the known ones.
        if closed:
            if high is None or high >= len(maybe):
                high = None
            yield from self._choosing(cell, maybe, low, high)
            return
        if len(maybe) > 6:
            raise InexactSchemaError(
                cell.at,
                "minProperties and maxProperties are kept beside at most 6 names that are not required, or where all names are "
                "known (additionalProperties false)",
            )
        for count in range(len(maybe) + 1):
            for chosen in combinations(maybe, count):
                if high is not None and count > high:
                    continue
                # How many properties of other names must be there as well.
                others = max(0, low - count)
                if others > 1:
                    raise InexactSchemaError(
                        cell.at,
                        f"minProperties is {cell.low}, and other names may be written twice: list all names but one "
                        "(properties)",
                    )
                named = tuple(
                    # A name that was not chosen must be absent, or it would count too.
                    (x, value if x in cell.required or x in chosen or x not in maybe else NOTHING)
                    for x, value in cell.named
                )
                yield replace(
                    cell,
                    named=named,
                    required=(*cell.required, *chosen),
                    low=sure + count + others if others else 0,
                    high=None if high is None else sure + high,
                    at="",
                )

    def _choosing(
        self, cell: ObjectCell, maybe: Sequence[str], low: int, high: int | None
    ) -> Iterator[ObjectCell]:
        """From `low` to `high` of some names, where there are no others."""
        if low > len(maybe):
            return
        if high is None:
            allowed = [tuple(maybe)]
        else:
            allowed = list(islice(combinations(maybe, high), 999))
        count = 0
        # At most `high` names may be there, at least `low` of these must.
        for names in allowed:
            for chosen in combinations(names, low):
                count += 1
                if count > MOST_CHOICES:
                    raise InexactSchemaError(
                        cell.at,
                        f"minProperties and maxProperties leave more than {MOST_CHOICES} choices of names: make it simpler",
                    )
                # As above: what is not among the chosen names is absent.
                named = tuple(
                    (x, value if x in cell.required or x in names else NOTHING)
                    for x, value in cell.named
                )
                required = (*cell.required, *chosen)
                yield replace(cell, named=named, required=required, low=0, high=None, at="")


_PLAIN = {"null": None, "true": True, "false": False}


def _key(value: Any) -> Any:
    # True equals 1 in Python, and not in JSON.
    return (isinstance(value, bool), value)


def _children(cell: Any) -> Iterator[tuple[Conjunction, bool]]:
    """The parts of a cell, each with whether a value must have it."""
    if isinstance(cell, ArrayCell):
        yield from ((x, i < cell.low) for i, x in enumerate(cell.prefix))
        yield cell.rest, cell.low > len(cell.prefix)
    elif isinstance(cell, ObjectCell):
        yield from ((value, name in cell.required) for name, value in cell.named)
        yield from ((value, False) for _, value in cell.patterns)
        yield cell.rest, False


def _joined(cells: Sequence[Cell]) -> list[Cell]:
    """Integers and fractions that are bounded alike are numbers."""
    out = list(dict.fromkeys(cells))
    for cell in [x for x in out if isinstance(x, NumberCell) and x.kind == "fraction"]:
        for other in [x for x in out if isinstance(x, NumberCell) and x.kind != "fraction"]:
            # Integers and fractions with the same bounds are all numbers.
            if replace(other, kind="fraction", at=cell.at) == cell and cell in out:
                out[out.index(cell)] = replace(other, kind="number")
                if other.kind == "integer":
                    out.remove(other)
    return out


def _numbers(cells: Sequence[NumberCell]) -> list[dict[str, Any]]:
    out = list[dict[str, Any]]()
    for cell in cells:
        # The library has no keyword for numbers that are not whole.
        if cell.kind == "fraction":
            raise InexactSchemaError(
                cell.at,
                "integer is turned round here (by not, if, oneOf): numbers that are none cannot be described",
            )
        if cell.others:
            raise InexactSchemaError(
                cell.at,
                "multipleOf is turned round here (by not, if, oneOf): numbers that are none cannot be described",
            )
        some: dict[str, Any] = {"type": cell.kind}
        if cell.low is not None:
            some["exclusiveMinimum" if cell.low_open else "minimum"] = cell.low
        if cell.high is not None:
            some["exclusiveMaximum" if cell.high_open else "maximum"] = cell.high
        # The library rounds some open bounds so that they let the edge in.
        edges = {k: x for k, x in some.items() if k != "type"}
        if cell.kind == "number" and (why := edge_let_in(edges)):
            raise InexactSchemaError(cell.at, why)
        # A schema has one multipleOf; further ones go into allOf.
        more = [{"multipleOf": x} for x in cell.multiples[1:]]
        if cell.multiples:
            some["multipleOf"] = cell.multiples[0]
        out.append({**some, "allOf": more} if more else some)
    return out


def _string(cell: StringCell) -> dict[str, Any]:
    for key, others in (("pattern", cell.other_patterns), ("format", cell.other_formats)):
        if others:
            raise InexactSchemaError(
                cell.at,
                f"{key} is turned round here (by not, if, oneOf): texts that do not match it cannot be described",
            )
    patterns = [*cell.patterns, *map(format_pattern, cell.formats)]
    if cell.less:
        patterns.append(other_than(sorted(cell.less)))
    out: dict[str, Any] = {"type": "string"}
    # Some formats have a largest length of their own.
    high = min(
        [
            *([] if cell.high is None else [cell.high]),
            *(LONGEST[x] for x in cell.formats if x in LONGEST),
        ],
        default=None,
    )
    if cell.low:
        out["minLength"] = cell.low
    if high is not None:
        out["maxLength"] = high
    if patterns:
        out["pattern"] = patterns[0]
    # One schema holds one pattern: further ones stand beside it.
    more = [{"type": "string", "pattern": x} for x in patterns[1:]]
    if more:
        return {"allOf": [out, *more]}
    return out


def _one_pattern(cell: StringCell, at: str) -> str:
    """Names as one expression."""
    counted = bool(cell.low) or cell.high is not None
    patterns = [*cell.patterns, *map(format_pattern, cell.formats)]
    if cell.other_patterns or cell.other_formats or counted + len(patterns) > 1:
        raise InexactSchemaError(
            at,
            "propertyNames is kept where it says one thing: one pattern, one format, a length, or a list of names (enum)",
        )
    if counted:
        return f"^(?s:.{{{cell.low},{'' if cell.high is None else cell.high}}})$"
    if patterns:
        return patterns[0]
    return "^(?s:.*)$"


def other_than(texts: Sequence[str]) -> str:
    """An expression of all texts but some."""
    return f"^(?s:{_branches(sorted(set(texts)), 0)})$"


def _branches(texts: Sequence[str], at: int) -> str:
    """All that may follow a beginning of `at` characters that some texts share, so that none of
    them is spelled.
    """
    here = any(len(x) == at for x in texts)
    by_sign = dict[str, list[str]]()
    for text in texts:
        if len(text) > at:
            by_sign.setdefault(text[at], []).append(text)
    signs = "".join(map(_sign, by_sign))
    # Either the text ends here, where none of the forbidden ones does, or it goes on with a sign
    # that none of them has, or with a sign of some and not as they do.
    ways = ["" if not here else None, f"[^{signs}].*" if signs else ".+"]
    ways += [f"{_sign(x)}(?:{_branches(some, at + 1)})" for x, some in by_sign.items()]
    return "|".join(x for x in ways if x is not None)


def _sign(sign: str) -> str:
    plain = sign.isalnum() or ord(sign) > 127
    if plain:
        return sign
    return f"\\x{ord(sign):02x}"
