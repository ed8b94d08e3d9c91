"""Regular expressions as values: what they are made of, and how their text is read.

The syntax is that of Rust's regex crate, as for `Regex`, without what a finite automaton over
characters has no states for: look-around, back references, boundaries, flags.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from polydec.base.errors import RequestError

Ranges = tuple[tuple[int, int], ...]
"""Code points as ranges, first and last included, ascending, without overlaps."""

LAST_CODE_POINT = 0x10FFFF
MOST_COPIES = 10_000
"""Greatest number in braces."""
DEEPEST = 200
"""Groups inside one another."""


@dataclass(frozen=True)
class CharacterSet:
    """One character.

    Attributes:
        ranges: Which ones, as code points. None: no text matches.
    """

    ranges: Ranges


@dataclass(frozen=True)
class ExpressionSequence:
    """Expressions one after another. No parts: the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class ExpressionChoice:
    """Any one of some expressions, at least one."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class RepeatedExpression:
    """An expression several times.

    Attributes:
        part: What is repeated.
        least: Fewest times, 0 or more.
        most: Most times, `least` or more. None: any number.
    """

    part: Expression
    least: int
    most: int | None


Expression = CharacterSet | ExpressionSequence | ExpressionChoice | RepeatedExpression

EMPTY_TEXT = ExpressionSequence(())


def literal_text(text: str) -> Expression:
    """The expression that matches a text and nothing else."""
    return ExpressionSequence(tuple(CharacterSet(((ord(c), ord(c)),)) for c in text))


def optional_expression(part: Expression) -> Expression:
    """The expression that matches what `part` does, and the empty text."""
    return RepeatedExpression(part, 0, 1)


def parse_expression(
    pattern: str, called: str = "regex", *, ascii_classes: bool = False
) -> Expression:
    """Read an expression.

    Args:
        pattern: Its text.
        called: How errors name it. Default "regex".
        ascii_classes: Whether \\d and \\w hold ASCII alone, as in ECMAScript. Default False.

    Returns:
        The expression, which the whole text must match.

    Raises:
        RequestError: It is malformed, or uses what is not supported, with its place.
    """
    return _ExpressionReader(pattern, called, ascii_classes).read_whole()


def join_ranges(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Put ranges of code points in order, and those together that touch."""
    out = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def invert_ranges(ranges: Ranges) -> Ranges:
    """All code points but these."""
    out = list[tuple[int, int]]()
    first = 0
    for low, high in ranges:
        if first < low:
            out.append((first, low - 1))
        first = high + 1
    if first <= LAST_CODE_POINT:
        out.append((first, LAST_CODE_POINT))
    return tuple(out)


def intersect_ranges(a: Ranges, b: Ranges) -> Ranges:
    """Return the code points that are in both.

    Args:
        a: Ranges in order.
        b: Ranges in order.

    Returns:
        Their common part, in order.
    """
    return tuple(
        (max(low, other_low), min(high, other_high))
        for low, high in a
        for other_low, other_high in b
        if max(low, other_low) <= min(high, other_high)
    )


_DOT = invert_ranges(((10, 10),))
_SPACES = (
    *((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_OTHER_LETTERS = [(0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189)]
_JOINERS = [(0x200C, 0x200D)]
"""What Unicode counts as alphabetic, or as a sign that joins, though its general category is neither
a letter's nor a mark's."""

_NAMED = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": ((48, 57),),
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
"""The classes of POSIX, which are of ASCII."""


@cache
def _of_categories(categories: str) -> Ranges:
    """The code points of some general categories, by their names or the first letters of these."""
    wanted = categories.split()
    kinds = list(map(unicodedata.category, map(chr, range(LAST_CODE_POINT + 1))))
    holds = {kind: kind in wanted or kind[0] in wanted for kind in set(kinds)}
    # A million code points: their ranges begin and end where the answer changes.
    flag = np.array([False, *map(holds.__getitem__, kinds), False])
    edges = np.flatnonzero(flag[1:] != flag[:-1]).tolist()
    return tuple((low, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True))


@cache
def _class_ranges(letter: str) -> Ranges:
    """What \\d, \\s or \\w stands for."""
    if letter == "d":
        return _of_categories("Nd")
    if letter == "s":
        return _SPACES
    return join_ranges([*_of_categories("L M Nd Nl Pc"), *_OTHER_LETTERS, *_JOINERS])


_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}


class _ExpressionReader:
    """Reads an expression from left to right; `at` is the next character."""

    def __init__(self, pattern: str, called: str, ascii_classes: bool) -> None:
        self.pattern = pattern
        self.called = called
        self.ascii_classes = ascii_classes
        self.at = 0
        self.depth = 0

    def read_whole(self) -> Expression:
        read = self._alternatives()
        # Only a closing parenthesis ends the alternatives before the text ends.
        if self.at < len(self.pattern):
            raise self._wrong("unopened group")
        return read

    def _wrong(self, why: str) -> RequestError:
        return RequestError(
            f"{self.called} is {self.pattern[:60]!r}: {why} at character {self.at + 1}"
        )

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self) -> str:
        found = self._next()
        if not found:
            raise self._wrong("the expression ends in the middle")
        self.at += 1
        return found

    def _takes(self, text: str) -> bool:
        """Whether `text` comes next; it is read then."""
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _alternatives(self) -> Expression:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        return ExpressionChoice(tuple(parts))

    def _sequence(self) -> Expression:
        parts = list[Expression]()
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        if len(parts) == 1:
            return parts[0]
        return ExpressionSequence(tuple(parts))

    def _repeated(self, part: Expression) -> Expression:
        while True:
            if self._takes("*"):
                part = RepeatedExpression(part, 0, None)
            elif self._takes("+"):
                part = RepeatedExpression(part, 1, None)
            elif self._takes("?"):
                part = RepeatedExpression(part, 0, 1)
            elif self._takes("{"):
                part = RepeatedExpression(part, *self._counts())
            else:
                return part
            # Whether as much or as little as can be is taken makes no difference to what matches.
            self._takes("?")

    def _counts(self) -> tuple[int, int | None]:
        """The numbers behind an opening brace."""
        least = self._number()
        most: int | None = least
        if self._takes(","):
            most = None
            if self._next() != "}":
                most = self._number()
        if not self._takes("}"):
            raise self._wrong("a repetition has no closing brace")
        if most is not None and most < least:
            raise self._wrong(f"a repetition goes from {least} to {most}")
        return least, most

    def _number(self) -> int:
        first = self.at
        while self._next().isdecimal() and self._next().isascii():
            self.at += 1
        digits = self.pattern[first : self.at]
        if not digits:
            raise self._wrong("a repetition needs a number (a brace that is meant itself is \\{)")
        # The length first: Python takes long over a number of a million digits.
        if len(digits) > 9 or int(digits) > MOST_COPIES:
            raise self._wrong(
                f"a repetition of {digits[:20]}: at most {MOST_COPIES} times are allowed"
            )
        return int(digits)

    def _atom(self) -> Expression:
        c = self._take()
        if c == "(":
            return self._group()
        if c == "[":
            return CharacterSet(self._class())
        if c == ".":
            return CharacterSet(_DOT)
        if c == "\\":
            return CharacterSet(self._escape())
        # Errors name the sign itself, which was read already.
        self.at -= c in "*+?{^$"
        if c in "*+?{":
            raise self._wrong("a repetition has nothing to repeat")
        if c in "^$":
            raise self._wrong(
                "an anchor is not supported, as the whole answer matches anyway, so leave it out,"
            )
        return CharacterSet(((ord(c), ord(c)),))

    def _group(self) -> Expression:
        self.depth += 1
        # Each level is a call of Python, which allows only so many.
        if self.depth > DEEPEST:
            raise self._wrong(f"groups stand more than {DEEPEST} deep in one another")
        if self._takes("?"):
            self._group_kind()
        inner = self._alternatives()
        if not self._takes(")"):
            raise self._wrong("a group is not closed")
        self.depth -= 1
        return inner

    def _group_kind(self) -> None:
        """What stands behind the question mark of a group: nothing, or a name."""
        if self._takes(":"):
            return
        # `(?<` begins a name, and with a sign behind it a look back.
        named = self._takes("P<") or self._takes("<")
        if not named or self._next() in ("=", "!"):
            raise self._wrong("flags and look-around are not supported")
        while self._take() != ">":
            pass

    def _escape(self) -> Ranges:
        """What a backslash and what follows it stand for."""
        c = self._take()
        if c in "dsw":
            return self._escaped_class(c)
        if c in "DSW":
            return invert_ranges(self._escaped_class(c.lower()))
        if c in _CONTROLS:
            code = _CONTROLS[c]
        elif c in _HEX_LENGTH:
            code = self._code(_HEX_LENGTH[c])
        # A letter that has no meaning yet may get one, so it does not stand for itself.
        elif c.isalnum() or not c.isascii():
            self.at -= 1
            raise self._wrong(f"\\{c} is not supported")
        else:
            code = ord(c)
        return ((code, code),)

    def _escaped_class(self, letter: str) -> Ranges:
        if self.ascii_classes and letter == "d":
            return _NAMED["digit"]
        if self.ascii_classes and letter == "w":
            return _NAMED["word"]
        return _class_ranges(letter)

    def _code(self, length: int) -> int:
        """A code point in hexadecimal digits: in braces, or so many of them."""
        if self._takes("{"):
            end = self.pattern.find("}", self.at)
            digits = self.pattern[self.at : end]
            self.at = end + 1
        else:
            digits = self.pattern[self.at : self.at + length]
            self.at += length
        try:
            code = int(digits, 16)
        except ValueError:
            code = -1
        # `int` reads underscores and signs too; surrogates are no characters of a text.
        if not digits.isalnum() or not 0 <= code <= LAST_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            raise self._wrong(f"{digits[:20]!r} is no code point")
        return code

    def _class(self) -> Ranges:
        """What stands behind an opening bracket, to the closing one."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._wrong(f"classes stand more than {DEEPEST} deep in one another")
        inverted = self._takes("^")
        found = list[tuple[int, int]]()
        kept: Ranges | None = None
        first = True
        # A bracket right at the beginning stands for itself.
        while first or not self._takes("]"):
            if self._takes("&&"):
                kept = self._cut(kept, found)
                found = []
            elif self._takes("[:"):
                found += self._named()
            elif self._takes("["):
                found += self._class()
            else:
                found += self._range()
            first = False
        self.depth -= 1
        out = self._cut(kept, found)
        if inverted:
            return invert_ranges(out)
        return out

    def _cut(self, kept: Ranges | None, found: list[tuple[int, int]]) -> Ranges:
        """What was found, less what an earlier part of an intersection does not have."""
        joined = join_ranges(found)
        if kept is None:
            return joined
        return intersect_ranges(kept, joined)

    def _named(self) -> Ranges:
        end = self.pattern.find(":]", self.at)
        name = self.pattern[self.at : max(end, self.at)]
        if name.removeprefix("^") not in _NAMED:
            raise self._wrong(f"no class is called {name[:20]!r}")
        self.at = end + 2
        if name.startswith("^"):
            return invert_ranges(_NAMED[name[1:]])
        return _NAMED[name]

    def _range(self) -> Ranges:
        """One character of a class, some by their escape, or those from one to another."""
        low = self._class_member()
        following = self.pattern[self.at + 1 : self.at + 2]
        if self._next() == "-" and following == "-":
            raise self._wrong("a difference of classes (--) is not supported")
        # A hyphen at the end stands for itself.
        if self._next() != "-" or following in ("]", ""):
            return low
        self.at += 1
        high = self._class_member()
        if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
            raise self._wrong("a range needs a character at both of its ends")
        if high[0][0] < low[0][0]:
            raise self._wrong("a range ends before it begins")
        return ((low[0][0], high[0][0]),)

    def _class_member(self) -> Ranges:
        c = self._take()
        if c == "\\":
            return self._escape()
        if c == "~" and self._next() == "~":
            raise self._wrong("a symmetric difference of classes (~~) is not supported")
        return ((ord(c), ord(c)),)


def map_characters(expression: Expression, spell: Callable[[Ranges], Expression]) -> Expression:
    """Put another expression in the place of every character.

    Args:
        expression: The expression.
        spell: Gives what stands for one character of some code points.

    Returns:
        The expression of the other texts.
    """
    match expression:
        case CharacterSet():
            return spell(expression.ranges)
        case ExpressionSequence():
            return ExpressionSequence(tuple(map_characters(x, spell) for x in expression.parts))
        case ExpressionChoice():
            return ExpressionChoice(tuple(map_characters(x, spell) for x in expression.parts))
        case RepeatedExpression():
            return RepeatedExpression(
                map_characters(expression.part, spell), expression.least, expression.most
            )
