"""What a schema allows as cells, and what it does not allow: set operations instead of `not`, `if`, `oneOf` and their like."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.laws.constraints.anchors import (
    ReferenceResolver,
    UnresolvedReferenceError,
    parts_of,
    resolve_base_uri,
)
from polydec.laws.constraints.cells import (
    ANYTHING,
    KINDS,
    NOTHING,
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
    intersect_cells,
)
from polydec.laws.constraints.formats import FORMATS, UNKEPT

MOST_CELLS = 1000
MOST_LISTS = 400
MOST_CHOICES = 400
"""Cells of a schema; lists that are named one by one; ways to choose some of the names of an
object.
"""
DEEPEST = 60
"""References and parts that are followed inside one another without a value between them."""
LOOKED = 6
"""Values inside one another that are looked at for whether there is any."""

SAYS_NOTHING = frozenset(
    {
        *("title", "description", "$comment", "default", "examples", "$schema", "$id", "id"),
        *("deprecated", "readOnly", "writeOnly", "$defs", "definitions", "$anchor", "x-guidance"),
        *("$dynamicAnchor", "$recursiveAnchor", "contentEncoding", "contentMediaType"),
    }
)
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRINGS = ("minLength", "maxLength", "pattern", "format")
ARRAYS = ("minItems", "maxItems", "uniqueItems", "prefixItems", "items", "additionalItems")
OBJECTS = (
    *("minProperties", "maxProperties", "required", "properties", "patternProperties"),
    *("additionalProperties", "propertyNames"),
)
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")

Cells = list[Cell]
Way = Callable[[Cells], Cells]


class ContradictorySchemaError(RequestError):
    """That no value fits."""


class InexactSchemaError(RequestError):
    """What cannot be said exactly."""

    def __init__(self, at: str, why: str) -> None:
        super().__init__(why)
        self.at = at or "#"


@dataclass(frozen=True)
class _SchemaNode:
    """A part of a schema.

    Attributes:
        schema: The part.
        base: The address that holds where it stands.
        at: Where it stands, as a JSON pointer.
    """

    schema: Any
    base: str
    at: str


class SchemaReader:
    """Reads a schema as cells.

    Args:
        root: The schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._anchors = ReferenceResolver(root)
        self._nodes = [_SchemaNode(True, "", "#")]
        self._numbers = dict[tuple[int, str], int]()
        self._held = list[Any]()  # so that no identity is another's later
        self._cells = dict[Conjunction, Cells]()
        self._looking = set[Conjunction]()
        self._places = dict[int, str]()
        self._mark(root, "#")
        self.root = self.schema_number(root, resolve_base_uri(root, ""), "#")

    def _mark(self, root: Any, at: str) -> None:
        waiting = [(root, at)]
        # Identical objects may stand at several places; the first place names them in errors.
        while waiting:
            schema, here = waiting.pop()
            if id(schema) not in self._places:
                self._places[id(schema)] = here
                waiting += [(part, here + way) for way, part in parts_of(schema)]

    def schema_number(self, schema: Any, base: str, at: str, sign: bool = True) -> Conjunction:
        """Give a schema a number, so that it can stand in a conjunction.

        Args:
            schema: The schema.
            base: The address that holds where it stands.
            at: Where it stands, for errors.
            sign: True: a value must fit it; False: it must not. Default True.

        Returns:
            The conjunction of this one condition.

        Raises:
            InexactSchemaError: It is neither an object nor a boolean.
        """
        # Keywords that only describe constrain nothing.
        if isinstance(schema, Mapping) and not set(schema) - SAYS_NOTHING:
            schema = True
        if isinstance(schema, bool):
            if schema is sign:
                return ANYTHING
            return NOTHING
        if not isinstance(schema, Mapping):
            raise InexactSchemaError(
                at, f"a schema must be an object or boolean, and is {short_repr(schema)}"
            )
        # One object may be read from several base addresses, where its references mean different
        # things.
        key = (id(schema), resolve_base_uri(schema, base))
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append(_SchemaNode(schema, key[1], self._places.get(id(schema), at)))
            self._held.append(schema)
        return ((sign, self._numbers[key]),)

    def fitting_cells(self, what: Conjunction) -> Cells:
        """All that fits."""
        if what == NOTHING:
            return []
        if what not in self._cells:
            # All values, narrowed by one schema after the other; those that must fit come first, so
            # that few cells are left for the set differences.
            out = self._kept(KINDS)
            for sign, number in sorted(what, key=lambda x: not x[0]):
                out = self._fitting(out, sign, self._nodes[number], 0)
            self._cells[what] = out
        return self._cells[what]

    def is_empty(self, what: Conjunction) -> bool:
        """Whether surely nothing fits."""
        if what in (ANYTHING, NOTHING):
            return what == NOTHING
        # A schema that needs itself, or many levels: not known to be empty.
        if what in self._looking or len(self._looking) >= LOOKED:
            return False
        self._looking.add(what)
        try:
            return not self.fitting_cells(what)
        finally:
            self._looking.discard(what)

    def _kept(self, cells: Iterable[Cell]) -> Cells:
        out = [cell for cell in dict.fromkeys(cells) if not self._empty(cell)]
        if len(out) > MOST_CELLS:
            raise InexactSchemaError(
                "#", f"it comes apart into more than {MOST_CELLS} cases: make it simpler"
            )
        return out

    def _empty(self, cell: Cell) -> bool:
        if isinstance(cell, ObjectCell):
            # A required property that no value fits makes the object impossible.
            return any(self.is_empty(cell.member_cell(name)) for name in cell.required)
        if isinstance(cell, ArrayCell):
            # So does an item that must be there.
            return any(
                self.is_empty(cell.item_cell(i)) for i in range(min(cell.low, len(cell.prefix) + 1))
            )
        return False

    def _meet(self, a: Collection[Cell], b: Collection[Cell]) -> Cells:
        # Meeting is quadratic: a schema that comes apart too far is refused before it takes long.
        if len(a) * len(b) > MOST_CELLS * 50:
            raise InexactSchemaError(
                "#", f"it comes apart into more than {MOST_CELLS} cases: make it simpler"
            )
        return self._kept(intersect_cells(a, b))

    # ---- what fits ----

    def _fitting(self, cells: Cells, sign: bool, node: _SchemaNode, depth: int) -> Cells:
        if depth > DEEPEST:
            raise InexactSchemaError(
                node.at,
                f"it needs itself again before any value is read, or more than {DEEPEST} parts inside one another",
            )
        if sign:
            return self._with(cells, node, depth + 1)
        return self._without(cells, node, depth + 1)

    def _node(self, part: Any, node: _SchemaNode) -> _SchemaNode | bool:
        what = self.schema_number(part, node.base, node.at)
        if what in (ANYTHING, NOTHING):
            return what == ANYTHING
        return self._nodes[what[0][1]]

    def _part(
        self, cells: Cells, part: Any, node: _SchemaNode, depth: int, sign: bool = True
    ) -> Cells:
        """The cells with a part of a node, or without it."""
        there = self._node(part, node)
        # Anything and nothing need no cells.
        if isinstance(there, bool):
            if there is sign:
                return cells
            return []
        if cells:
            return self._fitting(cells, sign, there, depth)
        return []

    def _parts(
        self, cells: Cells, parts: Iterable[Any], node: _SchemaNode, depth: int, sign: bool = True
    ) -> Cells:
        for part in parts:
            cells = self._part(cells, part, node, depth, sign)
        return cells

    def _target(self, key: str, node: _SchemaNode) -> _SchemaNode | bool:
        try:
            schema, base = self._anchors.resolve_target(key, _text(node, key), node.base)
        except UnresolvedReferenceError as error:
            raise InexactSchemaError(node.at, str(error)) from None
        there = self.schema_number(schema, base, node.at)
        if there in (ANYTHING, NOTHING):
            return there == ANYTHING
        return self._nodes[there[0][1]]

    def _with(self, cells: Cells, node: _SchemaNode, depth: int) -> Cells:
        schema = node.schema
        for key in UNEVALUATED:
            if schema.get(key, True) is not True:
                raise InexactSchemaError(
                    node.at, f"{key} is not followed: say what there may be by name"
                )
        # Keywords of one kind of value first: they narrow most.
        cells = self._meet(cells, self._simple(node))
        for key in ("const", "enum"):
            if key in schema and cells:
                if key == "enum":
                    values = schema[key]
                else:
                    values = [schema[key]]
                if not isinstance(values, list):
                    raise InexactSchemaError(
                        node.at, f"enum is {short_repr(values)}: it must be a list of values"
                    )
                cells = self._listed(cells, values, node, depth)
        # References stand beside other keywords and hold as well, as newer drafts of the standard
        # say.
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in schema and cells:
                there = self._target(key, node)
                if isinstance(there, bool):
                    cells = cells if there else []
                else:
                    cells = self._fitting(cells, True, there, depth)
        cells = self._parts(cells, _list(node, "allOf"), node, depth)
        # A value fits anyOf if it fits any part: the union of the cells.
        if "anyOf" in schema:
            cells = self._kept(
                x for part in _list(node, "anyOf") for x in self._part(cells, part, node, depth)
            )
        if "oneOf" in schema:
            cells = self._kept(self._alone(cells, _list(node, "oneOf"), node, depth))
        if "not" in schema:
            # A schema that must not fit: set difference, in `_without`.
            cells = self._part(cells, schema["not"], node, depth, False)
        if "if" in schema and ("then" in schema or "else" in schema):
            # if/then/else: values that fit `if` and `then`, and values that do not fit `if` and fit
            # `else`.
            cells = self._kept(
                x
                for sign, key in ((True, "then"), (False, "else"))
                for x in self._part(
                    self._part(cells, schema["if"], node, depth, sign),
                    schema.get(key, True),
                    node,
                    depth,
                )
            )
        for name, needed in _dependent(node):
            # Objects with the name must fit what depends on it; all other values need not.
            has = ObjectCell(required=(name,))
            lacks = ObjectCell(named=((name, NOTHING),))
            others = [x for x in KINDS if not isinstance(x, ObjectCell)]
            cells = self._kept(
                [
                    *self._meet(cells, [*others, lacks]),
                    *self._part(self._meet(cells, [has]), needed, node, depth),
                ]
            )
        return cells

    def _alone(
        self, cells: Cells, options: Sequence[Any], node: _SchemaNode, depth: int
    ) -> Iterator[Cell]:
        for i, option in enumerate(options):
            # oneOf: the values that fit this option and none of the others.
            others = [x for j, x in enumerate(options) if j != i]
            yield from self._parts(
                self._part(cells, option, node, depth), others, node, depth, False
            )

    def _listed(self, cells: Cells, values: list[Any], node: _SchemaNode, depth: int) -> Cells:
        # Scalars are cells of listed values; arrays and objects become schemas of their own.
        flat, deep = _values(values)
        out = self._meet(cells, flat)
        for part in deep:
            out += self._part(cells, self._constant(part), node, depth)
        return self._kept(out)

    def _constant(self, value: Any) -> Any:
        """A schema of an array or an object alone."""
        key = ("constant", repr(value))
        # The same value gives the same schema object, and so the same number.
        for schema in self._held:
            if isinstance(schema, _ConstantSchema) and schema.key == key:
                return schema
        made = _ConstantSchema(value, key)
        self._held.append(made)
        return made

    # ---- what does not ----

    def _without(self, cells: Cells, node: _SchemaNode, depth: int) -> Cells:
        out = Cells()
        left = Cells()
        # A cell is decided alone where that is cheap: nothing of it fits, what fits is a short
        # list, or all of it fits.
        for cell in cells:
            inside = self._with([cell], node, depth)
            if not inside:
                out.append(cell)
            elif all(map(_finite, inside)):
                out += self._meet([cell], _others(inside))
            elif cell not in inside:
                left.append(cell)
        if left:
            # A value does not fit if it breaks at least one keyword: the union over the ways to do
            # so.
            for way in self._ways(node, depth):
                out += way(left)
        return self._kept(out)

    def _ways(self, node: _SchemaNode, depth: int) -> Iterator[Way]:
        """The ways not to fit a schema: one for each of its keywords, or several."""
        # One way for each keyword that a value may break.
        schema = node.schema
        for key in UNEVALUATED:
            if schema.get(key, True) is not True:
                raise InexactSchemaError(
                    node.at, f"{key} is not followed: say what there may be by name"
                )
        for found_cells in self._not_simple(node):
            yield lambda cells, other=found_cells: self._meet(cells, other)
        for key in ("const", "enum"):
            if key in schema:
                if key == "enum":
                    values = schema[key]
                else:
                    values = [schema[key]]
                yield lambda cells, values=values: self._unlisted(cells, values, node, depth)
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            # A schema is broken where what it refers to is broken.
            if key in schema:
                there = self._target(key, node)
                if not isinstance(there, bool):
                    yield lambda cells, there=there: self._fitting(cells, False, there, depth)
                elif not there:
                    yield lambda cells: cells
        for part in _list(node, "allOf"):
            yield lambda cells, part=part: self._part(cells, part, node, depth, False)
        # anyOf is broken by breaking every part.
        if "anyOf" in schema:
            options = _list(node, "anyOf")
            yield lambda cells: self._parts(cells, options, node, depth, False)
        # oneOf is broken by fitting none of the options, or two of them.
        if "oneOf" in schema:
            alternatives = _list(node, "oneOf")
            yield lambda cells: self._parts(cells, alternatives, node, depth, False)
            for a, b in combinations(alternatives, 2):
                yield lambda cells, pair=(a, b): self._parts(cells, pair, node, depth)
        if "not" in schema:
            yield lambda cells: self._part(cells, schema["not"], node, depth)
        if "if" in schema:
            # if/then is broken by fitting `if` and breaking `then`; else likewise.
            for sign, key in ((True, "then"), (False, "else")):
                yield lambda cells, sign=sign, key=key: self._part(
                    self._part(cells, schema["if"], node, depth, sign),
                    schema.get(key, True),
                    node,
                    depth,
                    False,
                )
        for name, needed in _dependent(node):
            # A dependency is broken by having the name and breaking what depends on it.
            yield lambda cells, name=name, needed=needed: self._part(
                self._meet(cells, [ObjectCell(required=(name,))]), needed, node, depth, False
            )

    def _unlisted(self, cells: Cells, values: list[Any], node: _SchemaNode, depth: int) -> Cells:
        flat, deep = _values(values)
        # No value of the list: each array or object is taken out one by one.
        out = self._meet(cells, _others(flat))
        for part in deep:
            out = self._part(out, self._constant(part), node, depth, False)
        return out

    # ---- keywords of one kind ----

    def _simple(self, node: _SchemaNode) -> Cells:
        """What fits the keywords that speak of one kind of value each."""
        schema = node.schema
        kinds = _kinds(node)
        out = Cells()
        if kinds & {"null", "boolean"}:
            if "null" in kinds:
                values = {"null"}
            else:
                values = set[str]()
            out.append(
                PlainCell(frozenset(values | ({"true", "false"} if "boolean" in kinds else values)))
            )
        # Every integer is a number, so `number` covers both.
        if kinds & {"number", "integer"}:
            number = _number(node, "number" if "number" in kinds else "integer").settled_value()
            out += [] if number is None else [number]
        if "string" in kinds:
            text = _string(node).settled_value()
            out += [] if text is None else [text]
        if "array" in kinds:
            out.append(self._array(node))
        if "object" in kinds:
            out.append(self._object(node))
        # Bounds of counts that exclude each other: no such value.
        for cell in (x for x in out if isinstance(x, (ArrayCell, ObjectCell))):
            if cell.high is not None and cell.low > cell.high:
                out.remove(cell)
        # Without any keyword all values of all kinds fit.
        if set(schema) - SAYS_NOTHING:
            return self._kept(out)
        return list(KINDS)

    def _array(self, node: _SchemaNode) -> ArrayCell:
        schema = node.schema
        first, rest = _items(node)
        held = ()
        # `contains` without minContains asks for at least one item.
        if "contains" in schema:
            low = _count(node, "minContains")
            high = _count(node, "maxContains")
            item = self.schema_number(schema["contains"], node.base, f"{node.at}/contains")
            held = (
                # At least one item where the schema does not say how many.
                ContainsRequirement(item, 0, 1 if low is None else low, high, "contains", node.at),
            )
        unique = schema.get("uniqueItems", False)
        return ArrayCell(
            tuple(self.schema_number(x, node.base, node.at) for x in first),
            self.schema_number(rest, node.base, node.at),
            _count(node, "minItems") or 0,
            _count(node, "maxItems"),
            held,
            # uniqueItems false allows everything, and so says nothing.
            True if unique is True else None,
            node.at if unique is True else "",
        )

    def _object(self, node: _SchemaNode) -> ObjectCell:
        schema = node.schema
        known = _mapping(node, "properties")
        by_pattern = _mapping(node, "patternProperties")
        patterns = tuple(
            (x, self.schema_number(y, node.base, node.at)) for x, y in by_pattern.items()
        )
        others = self.schema_number(schema.get("additionalProperties", True), node.base, node.at)
        named = list[tuple[str, Conjunction]]()
        for name, part in known.items():
            value = self.schema_number(part, node.base, node.at)
            # A named property must also fit every pattern that its name matches.
            for pattern, more in patterns:
                if self._found(pattern, name, node):
                    value = conjoin_schemas(value, more)
            named.append((name, value))
        # Counts of names are kept apart: they can be met only when it is known which names there
        # are.
        low = _count(node, "minProperties") or 0
        high = _count(node, "maxProperties")
        return ObjectCell(
            tuple(named),
            tuple(dict.fromkeys(_names(node, "required"))),
            patterns,
            others,
            low,
            high,
            self.schema_number(schema.get("propertyNames", True), node.base, node.at),
            (),
            node.at if low or high is not None or "propertyNames" in schema else "",
        )

    def _found(self, pattern: str, name: str, node: _SchemaNode) -> bool:
        import re

        try:
            return has_pattern_match(pattern, name)
        except re.error:
            raise InexactSchemaError(
                node.at, f"patternProperties has {short_repr(pattern)}: it is not read beside names"
            ) from None

    def _not_simple(self, node: _SchemaNode) -> Iterator[Cells]:
        """What does not fit them, keyword by keyword."""
        schema = node.schema
        if "type" in schema:
            yield _of_other_kinds(_kinds(node))
        for key in (x for x in NUMBERS if x in schema):
            yield from _not_number(node, key)
        for key in (x for x in STRINGS if x in schema):
            yield from _not_string(node, key)
        first, rest = _items(node)
        # An item of the prefix breaks its schema: the array is long enough to have it.
        for i, part in enumerate(first):
            prefix = (*(ANYTHING,) * i, self.schema_number(part, node.base, node.at, False))
            yield [ArrayCell(prefix, low=i + 1)]
        wrong = self.schema_number(rest, node.base, node.at, False)
        if wrong != NOTHING:
            # Some later item breaks the schema of the rest.
            yield [
                ArrayCell(held=(ContainsRequirement(wrong, len(first), 1, None, "items", node.at),))
            ]
        if low := _count(node, "minItems"):
            yield [ArrayCell(high=low - 1)]
        if (high := _count(node, "maxItems")) is not None:
            yield [ArrayCell(low=high + 1)]
        if schema.get("uniqueItems") is True:
            # Two items at least: a shorter array has no equal pair.
            yield [ArrayCell(distinct=False, low=2, at=node.at)]
        if "contains" in schema:
            item = self.schema_number(schema["contains"], node.base, node.at)
            low = _count(node, "minContains")
            high = _count(node, "maxContains")
            low = 1 if low is None else low
            # Too few items that fit, or too many.
            if low:
                yield [
                    ArrayCell(held=(ContainsRequirement(item, 0, 0, low - 1, "contains", node.at),))
                ]
            if high is not None:
                yield [
                    ArrayCell(
                        held=(ContainsRequirement(item, 0, high + 1, None, "contains", node.at),)
                    )
                ]
        yield from self._not_object(node)

    def _not_object(self, node: _SchemaNode) -> Iterator[Cells]:
        schema = node.schema
        for name in _names(node, "required"):
            # A required name is missing.
            yield [ObjectCell(named=((name, NOTHING),))]
        known = _mapping(node, "properties")
        by_pattern = _mapping(node, "patternProperties")
        for name, part in known.items():
            wrong = self.schema_number(part, node.base, node.at, False)
            # A named property is there and breaks its schema.
            yield [ObjectCell(named=((name, wrong),), required=(name,))]
        every = frozenset[str]()
        nobody = tuple[str, ...]()
        # Some property whose name matches breaks the schema of its pattern.
        for pattern, part in by_pattern.items():
            wrong = self.schema_number(part, node.base, node.at, False)
            name = self.schema_number(self._constant_pattern(pattern), node.base, node.at)
            if wrong != NOTHING:
                extra = ExtraProperty(every, nobody, name, wrong, "patternProperties", node.at)
                yield [ObjectCell(extra=(extra,))]
        others = self.schema_number(
            schema.get("additionalProperties", True), node.base, node.at, False
        )
        # Some property that nothing else speaks of breaks the schema of the others.
        if others != NOTHING:
            names = frozenset(known)
            extra = ExtraProperty(
                names, tuple(by_pattern), ANYTHING, others, "additionalProperties", node.at
            )
            yield [ObjectCell(extra=(extra,))]
        name = self.schema_number(schema.get("propertyNames", True), node.base, node.at, False)
        # Some name breaks the schema of names.
        if name != NOTHING:
            extra = ExtraProperty(every, nobody, name, ANYTHING, "propertyNames", node.at)
            yield [ObjectCell(extra=(extra,))]
        if low := _count(node, "minProperties"):
            yield [ObjectCell(high=low - 1, at=node.at)]
        if (high := _count(node, "maxProperties")) is not None:
            yield [ObjectCell(low=high + 1, at=node.at)]

    def _constant_pattern(self, pattern: str) -> Any:
        for schema in self._held:
            if type(schema) is dict and schema == {"type": "string", "pattern": pattern}:
                return schema
        made = {"type": "string", "pattern": pattern}
        self._held.append(made)
        return made


class _ConstantSchema(dict[str, Any]):
    """A schema of one array or object.

    Args:
        value: The array or object.
        key: The key by which the schema is found again.
    """

    def __init__(self, value: Any, key: tuple[str, str]) -> None:
        self.key = key
        # A constant is written as a schema, so that it meets other schemas by the same rules.
        if isinstance(value, list):
            schema: dict[str, Any] = {
                "type": "array",
                "prefixItems": [{"const": x} for x in value],
                "minItems": len(value),
                "maxItems": len(value),
            }
        else:
            schema = {
                "type": "object",
                "properties": {name: {"const": x} for name, x in value.items()},
                "required": list(value),
                "additionalProperties": False,
            }
        super().__init__(schema)


# ---- keywords as they stand ----

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")


def _wrong(node: _SchemaNode, key: str, what: str) -> InexactSchemaError:
    return InexactSchemaError(
        node.at, f"{key} is {short_repr(node.schema[key])}: it must be {what}"
    )


def _kinds(node: _SchemaNode) -> set[str]:
    # Without a type every kind of value is meant.
    if "type" not in node.schema:
        return set(TYPES)
    value = node.schema["type"]
    if isinstance(value, list):
        named = value
    else:
        named = [value]
    if not all(isinstance(x, str) for x in named):
        raise InexactSchemaError(
            node.at, f"type must be a string or a list of strings, and is {short_repr(value)}"
        )
    if unknown := [x for x in named if x not in TYPES]:
        raise InexactSchemaError(node.at, f"Invalid type: {unknown[0]}")
    return set(named)


def _list(node: _SchemaNode, key: str) -> list[Any]:
    value = node.schema.get(key, [])
    if not isinstance(value, list):
        raise _wrong(node, key, "a list of schemas")
    return value


def _mapping(node: _SchemaNode, key: str) -> Mapping[str, Any]:
    value = node.schema.get(key, {})
    if not isinstance(value, Mapping):
        raise _wrong(node, key, "an object of schemas")
    return value


def _names(node: _SchemaNode, key: str) -> list[str]:
    value = node.schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise _wrong(node, key, "a list of names")
    return value


def _text(node: _SchemaNode, key: str) -> str:
    if not isinstance(node.schema[key], str):
        raise _wrong(node, key, "a text")
    return node.schema[key]


def _count(node: _SchemaNode, key: str) -> int | None:
    value = node.schema.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not None and (type(value) is not int or value < 0):
        raise _wrong(node, key, "a whole number from 0")
    return value


def _items(node: _SchemaNode) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of the rest."""
    items = node.schema.get("items", True)
    # Before draft 2020, a list behind `items` was the prefix.
    if isinstance(items, list):
        return items, node.schema.get("additionalItems", True)
    return _list(node, "prefixItems"), items


def _dependent(node: _SchemaNode) -> Iterator[tuple[str, Any]]:
    """Names, each with a schema that holds where an object has it."""
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, needed in _mapping(node, key).items():
            if isinstance(needed, list):
                yield name, {"required": needed}
            else:
                yield name, needed


def _bounds(node: _SchemaNode) -> Iterator[tuple[str, bool, Any]]:
    """Lower and upper bounds: which, whether it is left out itself, and the number."""
    schema = node.schema
    for side, key, strict in (
        ("low", "minimum", "exclusiveMinimum"),
        ("high", "maximum", "exclusiveMaximum"),
    ):
        for name in (key, strict):
            value = schema.get(name)
            if name == strict and isinstance(value, bool):  # of draft 4
                value = schema.get(key) if value else None
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _wrong(node, name, "a number")
            yield side, name == strict, value


def _number(node: _SchemaNode, kind: str) -> NumberCell:
    out: NumberCell | None = NumberCell(kind, at="")
    # Each bound narrows the interval; an empty interval is None.
    for side, strict, value in _bounds(node):
        if side == "low":
            more = NumberCell(low=value, low_open=strict)
        else:
            more = NumberCell(high=value, high_open=strict)
        if out is not None:
            out = out.meet_cell(more)
    of = node.schema.get("multipleOf")
    # bool is an int in Python.
    if of is not None:
        if isinstance(of, bool) or not isinstance(of, (int, float)) or of <= 0:
            raise _wrong(node, "multipleOf", "a number above 0")
        if out is not None:
            out = out.meet_cell(NumberCell(multiples=(of,)))
    if out is None:
        # No number fits: a cell with an empty list.
        return NumberCell(only=frozenset())
    return out


def _not_number(node: _SchemaNode, key: str) -> Iterator[Cells]:
    value = node.schema[key]
    if key == "multipleOf":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise _wrong(node, "multipleOf", "a number above 0")
        yield [NumberCell(others=(value,), at=node.at)]
        return
    # Draft 4: exclusiveMinimum is a switch of minimum; where it is off, nothing can break it.
    if isinstance(value, bool):
        if not value:
            return
        value = node.schema.get(key.replace("exclusiveM", "m"))
        if value is None:
            return
    if not isinstance(value, (int, float)):
        raise _wrong(node, key, "a number")
    strict = key.startswith("exclusive")
    # Below the minimum: the other side, with the bound itself exactly if it was excluded.
    if key.lower().endswith("minimum"):
        yield [NumberCell(high=value, high_open=not strict)]
    else:
        yield [NumberCell(low=value, low_open=not strict)]


def _string(node: _SchemaNode) -> StringCell:
    schema = node.schema
    pattern = schema.get("pattern")
    kind = schema.get("format")
    if pattern is not None and not isinstance(pattern, str):
        raise _wrong(node, "pattern", "a text")
    # Formats that no expression describes are refused, not dropped: an answer must keep what is
    # said.
    if kind in UNKEPT:
        raise InexactSchemaError(
            node.at, f"format {short_repr(kind)} is not kept: no expression describes it"
        )
    return StringCell(
        low=_count(node, "minLength") or 0,
        high=_count(node, "maxLength"),
        patterns=() if pattern is None else (pattern,),
        formats=(kind,) if isinstance(kind, str) and kind in FORMATS else (),
    )


def _not_string(node: _SchemaNode, key: str) -> Iterator[Cells]:
    value = node.schema[key]
    if key == "minLength":
        # A least length of 0 cannot be broken.
        low = _count(node, key)
        if low:
            yield [StringCell(high=low - 1)]
    elif key == "maxLength":
        high = _count(node, key)
        # Broken by one character more.
        yield [StringCell(low=(high or 0) + 1)]
    elif key == "pattern":
        yield [StringCell(other_patterns=(_text(node, key),), at=node.at)]
    elif value in UNKEPT:
        raise InexactSchemaError(
            node.at, f"format {short_repr(value)} is not kept: no expression describes it"
        )
    elif isinstance(value, str) and value in FORMATS:
        yield [StringCell(other_formats=(value,), at=node.at)]


def _of_other_kinds(kinds: set[str]) -> Cells:
    out = Cells()
    plain = (set() if "null" in kinds else {"null"}) | (
        set() if "boolean" in kinds else {"true", "false"}
    )
    if plain:
        out.append(PlainCell(frozenset(plain)))
    # Numbers that are no integers are what is left where only `number` is missing.
    if "number" not in kinds:
        out.append(NumberCell("fraction" if "integer" in kinds else "number"))
    out += [
        cell
        for name, cell in (
            ("string", StringCell()),
            ("array", ArrayCell()),
            ("object", ObjectCell()),
        )
        if name not in kinds
    ]
    return out


def _values(values: list[Any]) -> tuple[Cells, list[Any]]:
    """Some values as cells, and those among them that are arrays or objects."""
    plain = frozenset(_PLAIN[x] for x in values if x is None or isinstance(x, bool))
    numbers = frozenset(x for x in values if type(x) in (int, float))
    texts = frozenset(x for x in values if isinstance(x, str))
    cells: Cells = [
        *([PlainCell(plain)] if plain else []),
        *([NumberCell(only=numbers)] if numbers else []),
        *([StringCell(only=texts)] if texts else []),
    ]
    return cells, [x for x in values if isinstance(x, (list, dict))]


_PLAIN = {None: "null", True: "true", False: "false"}


def _finite(cell: Cell) -> bool:
    """Whether its values are named one by one."""
    return isinstance(cell, PlainCell) or (
        isinstance(cell, (NumberCell, StringCell)) and cell.only is not None
    )


def _others(cells: Cells) -> Cells:
    """All but some values."""
    # The complement, kind by kind: arrays and objects are never listed here.
    out: Cells = [ArrayCell(), ObjectCell()]
    plain = set[str]()
    texts = frozenset[str]()
    listed = frozenset[Any]()
    for cell in cells:
        if isinstance(cell, PlainCell):
            plain |= cell.values
        elif isinstance(cell, StringCell):
            texts |= cell.only or frozenset()
        elif isinstance(cell, NumberCell):
            listed |= cell.only or frozenset()
    if left := PlainCell().values - plain:
        out.append(PlainCell(left))
    out.append(StringCell(less=texts))
    # Numbers: the open intervals between the listed ones.
    edges = [None, *sorted(listed), None]
    for low, high in pairwise(edges):
        out.append(
            NumberCell(low=low, low_open=low is not None, high=high, high_open=high is not None)
        )
    return out
