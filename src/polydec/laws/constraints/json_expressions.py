"""JSON schemas as regular expressions: those whose values stand in one another to a known depth.

The order of properties and what is closed are as for `JsonSchema`. Behind a comma and a colon stands
a space at most, and no white space elsewhere. What no regular expression says, or says only at
length, is refused by its keyword and place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.laws.constraints.anchors import ReferenceResolver
from polydec.laws.constraints.bounded import restrict_number_bounds
from polydec.laws.constraints.closed import NANOSECONDS, TIMES, close_schema_objects
from polydec.laws.constraints.expressions import (
    EMPTY_TEXT,
    CharacterSet,
    Expression,
    ExpressionChoice,
    ExpressionSequence,
    Ranges,
    RepeatedExpression,
    intersect_ranges,
    join_ranges,
    literal_text,
    map_characters,
    optional_expression,
    parse_expression,
)
from polydec.laws.constraints.finite import schema_references
from polydec.laws.constraints.formats import FORMATS, LONGEST, UNKEPT

PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0x10FFFF))
"""Characters of a text that are written as they are."""
WRITTEN = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""Characters that are written behind a backslash, and how."""

ANY_CHARACTER: Ranges = ((0, 0x10FFFF),)
ANY_DIGIT = CharacterSet(((48, 57),))
MORE_DIGITS = RepeatedExpression(ANY_DIGIT, 1, None)
FRACTION = ExpressionSequence((literal_text("."), MORE_DIGITS))

ANYWHERE = frozenset(
    (
        *("not", "if", "then", "else", "oneOf", "$dynamicRef", "$recursiveRef"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
        *("unevaluatedProperties", "unevaluatedItems"),
    )
)
"""Keywords that are refused beside any type."""
REFUSED: Mapping[str, frozenset[str]] = {
    "object": frozenset(("patternProperties", "propertyNames", "minProperties", "maxProperties")),
    "array": frozenset(("contains", "minContains", "maxContains", "additionalItems")),
    "string": frozenset(("contentSchema",)),
    "integer": frozenset(("multipleOf",)),
    "number": frozenset(("multipleOf",)),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""Of each type the keywords that are refused beside it."""


def schema_expression(schema: Mapping[str, Any]) -> Expression:
    """Say a schema's values as a regular expression. Raises RequestError, with the place, where none
    does."""
    schema_references(schema)  # raises where it is nested too deeply
    bounded = restrict_number_bounds(schema)
    closed = close_schema_objects(bounded, ReferenceResolver(bounded).follow_reference)
    # The grammar library's own switch for white space: both kinds of models read it alike.
    own = schema.get("x-guidance")
    spaced = True
    if own is not None:
        if not isinstance(own, Mapping) or not own.keys() <= {
            "whitespace_flexible",
            "whitespace_pattern",
        }:
            raise _refusal("#", "x-guidance has keys beside whitespace_flexible")
        spaced = own.get("whitespace_flexible") is not False
    return _SchemaReader(closed, spaced).read_schema(closed, "#", ())


def _refusal(where: str, why: str) -> RequestError:
    return RequestError(f"json_schema at {where}: {why}, on a canvas that is filled in any order")


@dataclass(frozen=True)
class _SchemaReader:
    """Reads the parts of a schema.

    Attributes:
        root: The schema.
        spaced: Whether a space may stand behind commas and colons.
    """

    root: Mapping[str, Any]
    spaced: bool

    def read_schema(self, schema: Any, where: str, within: tuple[str, ...]) -> Expression:
        """Read a part.

        Args:
            schema: The part.
            where: Its place, as a JSON pointer.
            within: References that it is read for.

        Returns:
            Its values.

        Raises:
            RequestError: It cannot be said.
        """
        if not isinstance(schema, Mapping) or not schema.keys() - {"title", "description"}:
            raise _refusal(where, "a value of any kind has no bound, so give a type")
        # Before anything is read: what stands beside a keyword must not get lost.
        for key in schema:
            if key in ANYWHERE:
                raise _refusal(where, f"{key} is not supported")
        if "$ref" in schema:
            return self._reference(schema, where, within)
        if "const" in schema:
            return _listed([schema["const"]], schema, where)
        if "enum" in schema:
            return _listed(schema["enum"], schema, where)
        for key in ("anyOf", "allOf"):
            if key in schema:
                return self._combined(key, schema, where, within)
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return self._typed(kinds, schema, where, within)
        # No type means any type, objects of any names among them.
        if not isinstance(kinds, list) or not kinds:
            raise _refusal(where, "a value without a type has no bound, so give a type")
        return ExpressionChoice(tuple(self._typed(x, schema, where, within) for x in kinds))

    def _reference(
        self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]
    ) -> Expression:
        ref = schema["$ref"]
        # A schema that holds itself has values of any depth, and no regular expression says these.
        if ref in within:
            raise _refusal(where, f"{str(ref)[:60]} needs itself again, and recursion has no bound")
        there = None
        if isinstance(ref, str):
            there = ReferenceResolver(self.root).follow_reference(ref)
        if there is None:
            raise _refusal(where, f"$ref {str(ref)[:60]!r} is not followed")
        return self.read_schema(there, where, (*within, ref))

    def _combined(
        self, key: str, schema: Mapping[str, Any], where: str, within: tuple[str, ...]
    ) -> Expression:
        """anyOf, or allOf of one part, with nothing beside it that speaks of values."""
        # What stands beside would have to hold as well: an intersection, which no expression says.
        beside = {"type", *(x for kind in REFUSED.values() for x in kind), *_OF_VALUES} & set(
            schema
        )
        parts = schema[key]
        if (
            not isinstance(parts, list)
            or not parts
            or beside
            or (key == "allOf" and len(parts) > 1)
        ):
            raise _refusal(where, f"{key} is supported by itself alone, and allOf of one part")
        return ExpressionChoice(
            tuple(
                self.read_schema(part, f"{where}/{key}/{i}", within) for i, part in enumerate(parts)
            )
        )

    def _typed(
        self, kind: Any, schema: Mapping[str, Any], where: str, within: tuple[str, ...]
    ) -> Expression:
        if kind not in REFUSED:
            raise _refusal(where, f"type is {str(kind)[:40]!r}, which is none")
        for key in schema:
            if key in REFUSED[kind]:
                raise _refusal(where, f"{key} is not supported")
        match kind:
            case "object":
                return self._object(schema, where, within)
            case "array":
                return self._array(schema, where, within)
            case "string":
                return _string(schema, where)
            case "integer":
                return _integer(schema, where)
            case "number":
                return _number(schema, where)
            case "boolean":
                return ExpressionChoice((literal_text("true"), literal_text("false")))
            case _:
                return literal_text("null")

    def _sign(self, sign: str) -> Expression:
        """A comma or a colon, with what may stand behind it."""
        if not self.spaced:
            return literal_text(sign)
        # One space, as most programs write JSON; more would only cost positions of the canvas.
        return ExpressionSequence((literal_text(sign), optional_expression(literal_text(" "))))

    def _object(self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]) -> Expression:
        known = schema.get("properties", {})
        needed = schema.get("required", [])
        # `close_schema_objects` says false of objects that name their properties.
        if schema.get("additionalProperties") is not False or not isinstance(known, Mapping):
            raise _refusal(
                where,
                "an object of any names has no bound, so name its properties, and no additionalProperties",
            )
        if not isinstance(needed, list) or not set(needed) <= known.keys():
            raise _refusal(where, "required names what is not among the properties")
        members = [
            (
                name in needed,
                ExpressionSequence(
                    (
                        literal_text(json.dumps(name, ensure_ascii=False)),
                        self._sign(":"),
                        self.read_schema(part, f"{where}/properties/{name}", within),
                    )
                ),
            )
            for name, part in known.items()
        ]
        return ExpressionSequence((literal_text("{"), self._members(members), literal_text("}")))

    def _members(self, members: Sequence[tuple[bool, Expression]]) -> Expression:
        """Members in order, those that are not needed left out or not, with commas between them."""
        # Behind a first member each further one brings its comma.
        later = [self._with_comma(needed, member) for needed, member in members]
        whole: Expression = EMPTY_TEXT
        # From the last member on: `whole` says what may stand where no earlier one does.
        for i in range(len(members) - 1, -1, -1):
            needed, member = members[i]
            begun = ExpressionSequence((member, *later[i + 1 :]))
            # Nothing in front of a needed member may be the first one but itself.
            if needed:
                whole = begun
            else:
                whole = ExpressionChoice((begun, whole))
        return whole

    def _with_comma(self, needed: bool, member: Expression) -> Expression:
        joined = ExpressionSequence((self._sign(","), member))
        if needed:
            return joined
        return optional_expression(joined)

    def _array(self, schema: Mapping[str, Any], where: str, within: tuple[str, ...]) -> Expression:
        least = schema.get("minItems", 0)
        most = schema.get("maxItems")
        if schema.get("uniqueItems"):
            raise _refusal(where, "uniqueItems is not supported")
        for name, value in (("minItems", least), ("maxItems", 0 if most is None else most)):
            if type(value) is not int or not 0 <= value <= 10_000:
                raise _refusal(where, f"{name} is {str(value)[:40]}: it must lie in 0 to 10000")
        inner = self._items(schema, least, most, where, within)
        return ExpressionSequence((literal_text("["), inner, literal_text("]")))

    def _items(
        self,
        schema: Mapping[str, Any],
        least: int,
        most: int | None,
        where: str,
        within: tuple[str, ...],
    ) -> Expression:
        first = schema.get("prefixItems")
        if first is not None:
            # A tuple: as many items as there are schemas, no fewer and no more.
            closed = schema.get("items") is False or most == len(first)
            if not isinstance(first, list) or not closed or least != len(first):
                raise _refusal(
                    where, "prefixItems is supported with as many minItems, and items false"
                )
            parts = [
                self.read_schema(x, f"{where}/prefixItems/{i}", within) for i, x in enumerate(first)
            ]
            return self._members([(True, x) for x in parts])
        if most == 0:
            return EMPTY_TEXT
        item = self.read_schema(schema.get("items"), f"{where}/items", within)
        # The first item stands before the repetition, which counts the others.
        last = None
        if most is not None:
            last = most - 1
            if least > most:
                raise _refusal(where, f"minItems is {least} and maxItems {most}")
        some = ExpressionSequence(
            (item, RepeatedExpression(self._with_comma(True, item), max(0, least - 1), last))
        )
        if least:
            return some
        return optional_expression(some)


_OF_VALUES = (
    *("properties", "required", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
"""Keywords that speak of values of some type."""


def _listed(values: Any, schema: Mapping[str, Any], where: str) -> Expression:
    """Some values, in JSON's shortest spelling, of which those count that are of the type."""
    kinds = schema.get("type")
    beside = set(_OF_VALUES) & set(schema)
    if not isinstance(values, list) or beside:
        raise _refusal(where, "enum and const are supported beside a type alone")
    wanted = kinds if isinstance(kinds, list) else [kinds]
    kept = [x for x in values if kinds is None or any(_is_of(x, kind) for kind in wanted)]
    if not kept:
        raise _refusal(where, "no value of the list is of the type")
    # Values that are equal as JSON may be spelled alike: each spelling counts once.
    spelled = [json.dumps(x, ensure_ascii=False, separators=(",", ":")) for x in kept]
    return ExpressionChoice(tuple(map(literal_text, dict.fromkeys(spelled))))


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type."""
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            # 1.0 is an integer in JSON schema; true is none, though Python counts it as one.
            return type(value) is int or (type(value) is float and value.is_integer())
        case "number":
            return type(value) in (int, float)
        case "null":
            return value is None
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _written_character(ranges: Ranges) -> Expression:
    """One character of a text as JSON writes it."""
    plain = CharacterSet(intersect_ranges(ranges, PLAIN))
    signs = [
        letter
        for code, letter in WRITTEN.items()
        if any(low <= code <= high for low, high in ranges)
    ]
    if not signs:
        return plain
    # Each such character has one spelling, so that a text is written in one way.
    behind = CharacterSet(join_ranges([(ord(x), ord(x)) for x in signs]))
    return ExpressionChoice((plain, ExpressionSequence((literal_text("\\"), behind))))


def _string(schema: Mapping[str, Any], where: str) -> Expression:
    pattern = schema.get("pattern")
    kind = schema.get("format")
    # This pattern was put in when the schema was closed, and the format below says as much.
    if kind in TIMES and pattern == NANOSECONDS:
        pattern = None
    if kind not in FORMATS and kind not in UNKEPT:
        kind = None  # it says nothing
    if kind in UNKEPT or kind in LONGEST:
        raise _refusal(where, f"format {kind} is not supported")
    least = schema.get("minLength", 0)
    most = schema.get("maxLength")
    # Two of them together are an intersection.
    if (pattern is not None) + (kind is not None) + bool(least or most is not None) > 1:
        raise _refusal(where, "pattern, format and lengths are supported one at a time")
    if pattern is not None:
        inner = _pattern(pattern, where)
    elif kind is not None:
        # Seconds have nine digits behind their point, as elsewhere.
        text = FORMATS[str(kind)].replace("[.][0-9]+", "[.][0-9]{1,9}")
        inner = parse_expression(text, f"format {kind}")
    else:
        for name, value in (("minLength", least), ("maxLength", 0 if most is None else most)):
            if type(value) is not int or not 0 <= value <= 10_000:
                raise _refusal(where, f"{name} is {str(value)[:40]}: it must lie in 0 to 10000")
        if most is not None and most < least:
            raise _refusal(where, f"minLength is {least} and maxLength {most}")
        inner = RepeatedExpression(CharacterSet(ANY_CHARACTER), least, most)
    # The expression speaks of the text itself; JSON writes some of its characters otherwise.
    quote = literal_text('"')
    return ExpressionSequence((quote, map_characters(inner, _written_character), quote))


def _pattern(pattern: Any, where: str) -> Expression:
    """The texts in which an expression is found."""
    if not isinstance(pattern, str):
        raise _refusal(where, "pattern is no text")
    body = pattern.removeprefix("^")
    begins = body != pattern
    # A dollar behind an odd number of backslashes is escaped, and no anchor.
    ends = body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\")) - 1) % 2 == 0
    if ends:
        body = body[:-1]
    try:
        inner = parse_expression(body, f"json_schema at {where}: pattern", ascii_classes=True)
    except RequestError as error:
        raise RequestError(f"{error} (an anchor may stand at both ends)") from None
    # An anchor binds closer than a bar: it would belong to one of the alternatives alone.
    if (begins or ends) and _has_open_bar(body):
        raise _refusal(where, "pattern has an anchor beside alternatives, so put them into a group")
    around = RepeatedExpression(CharacterSet(ANY_CHARACTER), 0, None)
    return ExpressionSequence(
        ((EMPTY_TEXT if begins else around), inner, (EMPTY_TEXT if ends else around))
    )


def _has_open_bar(body: str) -> bool:
    """Whether alternatives of an expression stand in no group."""
    groups = 0
    classes = 0
    at = 0
    while at < len(body):
        c = body[at]
        if c == "\\":
            # The next character is escaped, whatever it is.
            at += 1
        elif c in "[]":
            classes += 1 if c == "[" else -1
        elif classes:
            # Between brackets a parenthesis or a bar stands for itself.
            pass
        elif c in "()":
            groups += 1 if c == "(" else -1
        elif c == "|" and not groups:
            return True
        at += 1
    return False


def _integer(schema: Mapping[str, Any], where: str) -> Expression:
    low, high = _whole_bounds(schema, where)
    assert low is not None and high is not None, "integers were bounded when objects were closed"
    if low > high:
        raise _refusal(where, f"no integer lies from {low} to {high}")
    parts = list[Expression]()
    # Behind the minus sign the order is the other way round; -0 is not written.
    if low < 0:
        below = digits_between(max(1, -high), -low)
        parts.append(ExpressionSequence((literal_text("-"), below)))
    if high >= 0:
        parts.append(digits_between(max(0, low), high))
    return ExpressionChoice(tuple(parts))


def _whole_bounds(schema: Mapping[str, Any], where: str) -> tuple[int | None, int | None]:
    """The least and the greatest integer of a schema."""
    out = list[int | None]()
    for keys, step, choose in (
        (("minimum", "exclusiveMinimum"), 1, max),
        (("maximum", "exclusiveMaximum"), -1, min),
    ):
        found = list[int]()
        for key in keys:
            value = schema.get(key)
            if value is None:
                continue
            # 3.0 is a whole number as well.
            if type(value) not in (int, float) or float(value) != int(value):
                raise _refusal(where, f"{key} is {str(value)[:40]}: whole numbers are supported")
            # Among whole numbers an open bound is a closed one, one further inside.
            found.append(int(value) + step * key.startswith("exclusive"))
        out.append(choose(found) if found else None)
    return out[0], out[1]


def _number(schema: Mapping[str, Any], where: str) -> Expression:
    bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & set(schema)
    if not bounds:
        power = ExpressionSequence(
            (
                CharacterSet(((69, 69), (101, 101))),
                optional_expression(CharacterSet(((43, 43), (45, 45)))),
                MORE_DIGITS,
            )
        )
        whole = ExpressionChoice(
            (
                literal_text("0"),
                ExpressionSequence(
                    (CharacterSet(((49, 57),)), RepeatedExpression(ANY_DIGIT, 0, None))
                ),
            )
        )
        return ExpressionSequence(
            (
                optional_expression(literal_text("-")),
                whole,
                optional_expression(FRACTION),
                optional_expression(power),
            )
        )
    low, high = _whole_bounds(schema, where)
    if low is None or high is None or low < 0 or bounds != {"minimum", "maximum"}:
        raise _refusal(where, "a number has no bounds, or whole ones of 0 or more on both sides")
    if low > high:
        raise _refusal(where, f"no number lies from {low} to {high}")
    # Behind the upper bound itself nothing but zeros may stand.
    zeros = ExpressionSequence((literal_text("."), RepeatedExpression(literal_text("0"), 1, None)))
    last = ExpressionSequence((literal_text(str(high)), optional_expression(zeros)))
    if low == high:
        return last
    inside = ExpressionSequence((digits_between(low, high - 1), optional_expression(FRACTION)))
    return ExpressionChoice((inside, last))


def digits_between(low: int, high: int) -> Expression:
    """Say a range of integers in decimal digits.

    Args:
        low: First integer, 0 or more.
        high: Last integer, `low` or more.

    Returns:
        Their digits, without zeros in front.
    """
    parts = list[Expression]()
    while low <= high:
        # Those of as many digits as the first one.
        last = min(high, 10 ** len(str(low)) - 1)
        parts.append(_same_length(str(low), str(last)))
        low = last + 1
    return ExpressionChoice(tuple(parts))


def _same_length(low: str, high: str) -> Expression:
    """From one number to another of as many digits."""
    if not low:
        return EMPTY_TEXT
    # A common first digit, then the rest of both.
    if low[0] == high[0]:
        return ExpressionSequence((literal_text(low[0]), _same_length(low[1:], high[1:])))
    if set(low) == {"0"} and set(high) == {"9"}:
        return RepeatedExpression(ANY_DIGIT, len(low), len(low))
    # Numbers with the first number's digit, with the last one's, and those between.
    rest = len(low) - 1
    parts: list[Expression] = [
        ExpressionSequence((literal_text(low[0]), _same_length(low[1:], "9" * rest))),
        ExpressionSequence((literal_text(high[0]), _same_length("0" * rest, high[1:]))),
    ]
    if ord(high[0]) - ord(low[0]) > 1:
        middle = CharacterSet(((ord(low[0]) + 1, ord(high[0]) - 1),))
        parts.append(ExpressionSequence((middle, RepeatedExpression(ANY_DIGIT, rest, rest))))
    return ExpressionChoice(tuple(parts))
