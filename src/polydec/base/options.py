"""Options that say their range, choices and help once.

A parameter is annotated where it is declared:

    def build(kit, *, depth: Annotated[int, InRange(0, 64), "tokens drafted a pass"] = 2): ...

`callable_options(build)` makes an `Option` of each such parameter. Validation, the command line,
`polydec methods`, the docs and a server's JSON schema all come from these.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from operator import ge, gt, le, lt
from reprlib import Repr
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Protocol,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from polydec.base.errors import PolydecError, RequestError

LARGEST = 2**63 - 1
"""Whole numbers are at most so far from 0."""

ENTRIES = 1_000_000
"""Most entries of a tuple or a mapping."""

LETTERS = 4096
"""Most characters of a word."""

DIGITS = 100
"""Most characters of a number that is given as text."""


class ValueLimit(Protocol):
    """What a value must keep to. `of_all`: it is asked of a tuple or a mapping as a whole, not of
    each entry.
    """

    @property
    def of_all(self) -> bool: ...
    @property
    def spoken(self) -> str: ...
    def allows_value(self, value: Any) -> bool: ...
    def json_schema(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class InRange:
    """low <= value <= high."""

    low: float
    high: float
    of_all = False

    @property
    def spoken(self) -> str:
        return f"in {self.low} to {self.high}"

    def allows_value(self, value: Any) -> bool:
        return self.low <= value <= self.high

    def json_schema(self) -> dict[str, Any]:
        return {"minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class _OneSidedLimit:
    """One edge of a range."""

    edge: float
    of_all = False
    said: ClassVar[str]
    key: ClassVar[str]
    holds: ClassVar[Callable[[Any, Any], bool]]

    @property
    def spoken(self) -> str:
        return f"{self.said} {self.edge}"

    def allows_value(self, value: Any) -> bool:
        return type(self).holds(value, self.edge)

    def json_schema(self) -> dict[str, Any]:
        return {self.key: self.edge}


class AtLeast(_OneSidedLimit):
    """value >= edge."""

    said = "at least"
    key = "minimum"
    holds = ge


class GreaterThan(_OneSidedLimit):
    """value > edge."""

    said = "above"
    key = "exclusiveMinimum"
    holds = gt


class AtMost(_OneSidedLimit):
    """value <= edge."""

    said = "at most"
    key = "maximum"
    holds = le


class LessThan(_OneSidedLimit):
    """value < edge."""

    said = "below"
    key = "exclusiveMaximum"
    holds = lt


@dataclass(frozen=True, init=False)
class OneOf:
    """One of these values and no other."""

    choices: tuple[Any, ...]
    of_all = False

    def __init__(self, *choices: Any) -> None:
        object.__setattr__(self, "choices", choices)

    @property
    def spoken(self) -> str:
        return f"one of {', '.join(map(str, self.choices))}"

    def allows_value(self, value: Any) -> bool:
        return value in self.choices

    def json_schema(self) -> dict[str, Any]:
        return {"enum": list(self.choices)}


@dataclass(frozen=True)
class EntryCount:
    """low to high entries, of a tuple."""

    low: int
    high: int = ENTRIES
    of_all = True

    @property
    def spoken(self) -> str:
        if self.high == ENTRIES:
            return f"at least {self.low} of them"
        return f"{self.low} to {self.high} of them"

    def allows_value(self, value: Any) -> bool:
        return self.low <= len(value) <= self.high

    def json_schema(self) -> dict[str, Any]:
        return {"minItems": self.low, "maxItems": self.high}


_LIMITS = (InRange, _OneSidedLimit, OneOf, EntryCount)


@dataclass(frozen=True)
class ValueNote:
    """What a value means that needs saying beside the range, such as "0 is greedy"."""

    text: str


@dataclass(frozen=True)
class DeprecatedName:
    """An earlier name of the option, which is understood like its name."""

    name: str


@dataclass(frozen=True)
class ParseAs:
    """How a value is read, where the annotated type is wider or says too little: Annotated[str |
    Sequence[str], ParseAs(tuple[str, ...]), "stops"].

    Attributes:
        type: The type by which it is read.
    """

    type: Any


class CommaList:
    """Words in one text, which commas part. ParseAs(CommaList) reads a tuple[str, ...] so, where a
    text alone would be one entry.
    """


class MultilineText:
    """A text in which lines may break, where a str is one word or line. ParseAs(MultilineText)
    reads a str so.
    """


@dataclass(frozen=True)
class NoFlag:
    """Marks a field that is set from Python and has no flag on the command line."""


@dataclass(frozen=True)
class ParsedElsewhere:
    """Marks a field of a type of its own, whose text the command reads."""


REQUIRED = inspect.Parameter.empty
"""The default of a field that must be given."""


@dataclass(frozen=True)
class Option:
    """One parameter that a user sets.

    Attributes:
        name: Its name.
        type: int, float, bool, str, tuple[int, ...], tuple[float, ...], tuple[str, ...], CommaList,
            MultilineText, Mapping[int, float] or Mapping[str, Any], or one of these with None;
            object: a value of several forms, which somebody else looks at.
        default: Value where the user gives none, of that type.
        help: One line without a full stop.
        limits: All of them hold for a value (for each entry of a tuple, each value of a mapping).
        note: Said in parentheses behind the range.
        formerly: An earlier name that is understood as well; "": none.
        python_only: Whether it has no flag on the command line.
    """

    name: str
    type: Any
    default: Any
    help: str
    limits: tuple[ValueLimit, ...] = ()
    note: str = ""
    formerly: str = ""
    python_only: bool = False

    @property
    def form(self) -> Any:
        """The type without None."""
        if not self.optional:
            return self.type
        return next(t for t in get_args(self.type) if t is not type(None))

    @property
    def kind(self) -> type:
        """The type without None and without what it holds: int, float, bool, str, tuple or
        collections.abc.Mapping.
        """
        alike: dict[Any, type] = {CommaList: tuple, MultilineText: str}
        return alike.get(self.form) or get_origin(self.form) or self.form

    @property
    def optional(self) -> bool:
        """Whether None is a value."""
        return get_origin(self.type) in (Union, UnionType)

    @property
    def legal(self) -> str:
        """What a value must be, such as "a whole number, in 0 to 64, or none"."""
        # Limits of each entry are said together, limits of the number of entries last.
        each = " and ".join(x.spoken for x in self.limits if not x.of_all)
        conditions = [
            _SPOKEN[self.form],
            f"each {each}" if each and self.kind in _MANY else each,
            *(x.spoken for x in self.limits if x.of_all),
        ]
        return (
            ", ".join(filter(None, conditions))
            + (", or none" if self.optional else "")
            + (f" ({self.note})" if self.note else "")
        )

    @property
    def range(self) -> str:
        """The limits and the note without the type, such as "1 to 64; none: no limit"; "" where
        there are none.
        """
        limits = " and ".join(x.spoken.removeprefix("in ") for x in self.limits)
        return "; ".join(filter(None, (limits, self.note)))

    @property
    def spoken(self) -> str:
        """One line for a list of options: type, range, default and help."""
        return f"{self.legal}; default {as_text(self.default)}: {self.help}"

    def convert_value(self, value: Any) -> Any:
        """Convert a value to this option's type.

        Text is read as the command line gives it: "2,1,1" is a tuple, "5:1.5,7:-2" a mapping,
        "none" is None. A bool is no number; a whole float is a whole number; a whole number is a
        float.

        Args:
            value: A value of the type, or text.

        Returns:
            The converted value.

        Raises:
            RequestError: The value is not legal: one sentence of at most 300 characters that names
                the option, the value and what is legal.
        """
        # None comes first: no other form reads it.
        if self.optional and (value is None or value == "none"):
            return None
        try:
            out = _READ[self.form](value)
        except (ValueError, OverflowError, KeyError):
            raise RequestError(self._complaint(value)) from None
        # Limits on a tuple as such look at all of it; the others at each entry.
        if not all(
            x.allows_value(y) for x in self.limits for y in ((out,) if x.of_all else _entries(out))
        ):
            raise RequestError(self._complaint(out, within=True))
        return out

    def json_schema(self) -> dict[str, Any]:
        """JSON schema of the value, with default and description."""
        each = dict[str, Any]()
        whole = dict[str, Any]()
        for x in self.limits:
            # Limits of entries go into the schema of an entry, the others into that of the tuple.
            (whole if x.of_all else each).update(x.json_schema())
        out = _SCHEMA[self.form](each) | whole
        # null is a type of its own in JSON schema.
        if self.optional:
            out = {"anyOf": [out, {"type": "null"}]}
        # JSON has no tuples.
        if self.kind is not tuple or self.default is None:
            default = self.default
        else:
            default = list(_entries(self.default))
        return {
            **out,
            "default": default,
            "description": self.help + (f" ({self.note})" if self.note else ""),
        }

    def _complaint(self, value: Any, within: bool = False) -> str:
        """within: the value is of the right type, and outside of a range."""
        # Of a fixed list of words the nearest one is suggested.
        words = [str(c) for x in self.limits if isinstance(x, OneOf) for c in x.choices]
        if isinstance(value, str):
            near = get_close_matches(value[:DIGITS], words, 1, 0.5)
        else:
            near = []
        # A range alone is said as such: "it must lie in 0 to 1".
        if within and len(self.limits) == 1 and not self.note:
            limit = self.limits[0].spoken
        else:
            limit = ""
        if limit.startswith("in "):
            must = f"lie {limit}"
        else:
            must = f"be {limit or self.legal}"
        sentence = f"{self.name} is {short_repr(value)}: it must {must}" + (
            f"; did you mean {near[0]}?" if near else ""
        )
        # A sentence stays short, whatever the value is.
        if len(sentence) <= 300:
            return sentence
        return sentence[:299] + "…"


def name_suggestion(name: str, known: Collection[str], called: str, most: int = 3) -> str:
    """Say what a wrong name may mean.

    Args:
        name: The wrong name.
        known: All legal names.
        called: What they are, such as "the options".
        most: Most names that are suggested. Default 3.

    Returns:
        The nearest names as a question; all of them where none is near.
    """
    return near_names_question(name, known, f"{called} are {', '.join(known)}", most)


def near_names_question(name: str, known: Collection[str], otherwise: str, most: int = 3) -> str:
    """Ask whether a wrong name means one that is near.

    Args:
        name: The wrong name.
        known: All legal names.
        otherwise: What is said where none is near.
        most: Most names that are suggested. Default 3.

    Returns:
        The nearest names as a question, or `otherwise`.
    """
    # Cut short: the comparison takes long for long names.
    near = get_close_matches(name[:100], list(known), most, 0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise


def callable_options(build: Callable[..., Any]) -> tuple[Option, ...]:
    """Read the options of a callable: the parameters behind `*` of a function, all of a dataclass.

    Args:
        build: The function or dataclass.

    Returns:
        One option for each parameter, in order.

    Raises:
        TypeError: A parameter has no default, no help, or a type that options do not know: a fault
            of the code.
    """
    parameters = [
        p
        for p in inspect.signature(build).parameters.values()
        if p.kind is p.KEYWORD_ONLY or inspect.isclass(build)
    ]
    hints = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    # Annotations that are strings are resolved only where there are any: it takes time.
    if any(isinstance(hint, str) for hint in hints.values()):
        hints = get_type_hints(build, include_extras=True)
    return tuple(option_from_annotation(p.name, hints.get(p.name), p.default) for p in parameters)


def option_from_annotation(name: str, hint: Any, default: Any) -> Option:
    """Read the option that an annotation declares.

    Args:
        name: Name of the parameter.
        hint: ``Annotated[type, limits, "help"]``, in any order behind the type.
        default: Its default.

    Returns:
        The option.

    Raises:
        TypeError: Something is missing in the declaration, or the default is not legal.
    """
    out = _declared(name, hint, default)
    if default is inspect.Parameter.empty or not out.help:
        raise TypeError(
            f'option {name} needs a default and a line of help: Annotated[int, InRange(0, 64), "what it is"] = 3'
        )
    return _whole_declaration(out)


@cache
def dataclass_options(spec: Any) -> tuple[Option, ...]:
    """Read the fields of a dataclass that says what a command does.

    Unlike the options of `callable_options`, one may be REQUIRED, and one that is marked NoFlag may
    be of any type.

    Args:
        spec: The dataclass.

    Returns:
        One option for each field, in order.

    Raises:
        TypeError: A field has no help, or has a flag and a type that options do not know.
    """
    hints = get_type_hints(spec, include_extras=True)
    return tuple(
        _field(p.name, hints[p.name], p.default)
        for p in inspect.signature(spec).parameters.values()
    )


def _field(name: str, hint: Any, default: Any) -> Option:
    out = _declared(name, hint, default)
    if not out.help:
        raise TypeError(
            f'field {name} needs a line of help: Annotated[int, InRange(0, 64), "what it is"]'
        )
    # These fields are checked by somebody else, or have no default to check.
    apart = any(isinstance(x, ParsedElsewhere) for x in _unfold(hint)[1])
    if apart or out.python_only or default is REQUIRED:
        return out
    return _whole_declaration(out)


def keep_ranges(spec: Any) -> None:
    """Raise RequestError for the first field of a dataclass that lies outside of what it declares.
    Values stay as they are.
    """
    for field in dataclass_options(cast(Any, type(spec))):
        if field.limits:
            field.convert_value(getattr(spec, field.name))


def convert_dataclass_fields(spec: Any) -> None:
    """Put the value that its declaration makes of it in the place of every field of a frozen
    dataclass. Raises RequestError for the first one that is not legal.
    """
    for field in dataclass_options(cast(Any, type(spec))):
        # The dataclass is frozen, so its own setattr refuses.
        object.__setattr__(spec, field.name, field.convert_value(getattr(spec, field.name)))


def _whole_declaration(out: Option) -> Option:
    """The same option. Raises TypeError where its type is unknown or its default not legal."""
    if out.form not in _READ:
        raise TypeError(
            f"option {out.name} is of type {out.type}: an option is int, float, bool, str, tuple[int, ...], "
            "tuple[float, ...], tuple[str, ...], CommaList, MultilineText, Mapping[int, float], Mapping[str, Any], "
            "or one of these with None"
        )
    try:
        # A default must obey its own limits.
        out.convert_value(out.default)
    except PolydecError as e:
        raise TypeError(f"the default of an option is not legal: {e}") from None
    return out


def convert_annotated_value(name: str, value: Any, hint: Any) -> Any:
    """Convert a value as an annotation says: for a class that takes what an option gives.

    Args:
        name: How errors call it.
        value: The value, or text.
        hint: The annotation, as for `option_from_annotation`; help may be missing.

    Returns:
        The converted value.

    Raises:
        RequestError: The value is not legal.
    """
    return _declared(name, hint, None).convert_value(value)


def _declared(name: str, hint: Any, default: Any) -> Option:
    kind, extras = _unfold(hint)
    # Each extra is known by its class; a bare string is the help.
    return Option(
        name,
        next((x.type for x in extras if isinstance(x, ParseAs)), kind),
        default,
        next((x for x in extras if isinstance(x, str)), ""),
        tuple(x for x in extras if isinstance(x, _LIMITS)),
        next((x.text for x in extras if isinstance(x, ValueNote)), ""),
        next((x.name for x in extras if isinstance(x, DeprecatedName)), ""),
        any(isinstance(x, NoFlag) for x in extras),
    )


def _unfold(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare type and what was annotated, of Annotated[int | None, ...] and Annotated[int, ...]
    | None alike.
    """
    if get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__
    for member in get_args(hint):
        if get_origin(member) is Annotated:
            return member.__origin__ | None, member.__metadata__
    return hint, ()


def as_text(value: Any) -> str:
    """A value as the command line takes it: 2,1,1 for a tuple, none for None."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, cast(tuple[Any, ...], value)))
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{v}" for k, v in cast(Mapping[int, float], value).items())
    return str(value)


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def join_names(names: Sequence[str]) -> str:
    """One or more names in a sentence: a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def short_repr(value: Any) -> str:
    """A value of any origin in at most 60 characters, without control characters."""
    try:
        entries = _entries(value)
        kind = cast(object, type(value))
        # Tuples of numbers are written as on the command line.
        whole = kind is tuple and entries != () and all(type(x) is int for x in entries[:9])
        if whole:
            text = as_text(entries[:9]) + ",…" * (len(entries) > 9)
        else:
            text = _REPR.repr(value)
    except Exception:  # whole numbers of too many digits, and whatever a foreign object's repr does
        text = f"of type {type(value).__name__} and cannot be shown"
    # Control characters could rewrite the terminal.
    text = "".join(c if c.isprintable() else "?" for c in text)
    if len(text) <= 60:
        return text
    return text[:59] + "…"


_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _digits(text: str, form: re.Pattern[str]) -> str:
    # One character more than is legal is enough to see that it is too long.
    text = text[: DIGITS + 1].strip()
    if len(text) > DIGITS or not form.fullmatch(text):
        raise RequestError
    return text


def _whole(value: Any) -> int:
    if isinstance(value, str):
        value = int(_digits(value, _WHOLE))
    if type(value) is float and value.is_integer():
        value = int(value)
    # By exact type, as a bool is an int for Python.
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise RequestError
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        value = float(_digits(value, _NUMBER))
    if type(value) not in (int, float) or not math.isfinite(float(value)):
        raise RequestError
    return float(value)


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        # A word that is not listed is a KeyError, which `convert` reports.
        return _BOOLS[value[:DIGITS].strip().lower()]
    if type(value) is not bool:
        raise RequestError
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LETTERS or not value.isprintable():
        raise RequestError
    return value


def _passage(value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError
    # Line breaks and tabs are legal here; the rest is as for a word.
    _word(value.replace("\n", " ").replace("\t", " "))
    return value


def _list_of(read_one: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """How a tuple of numbers is read. A text within a list is no number."""

    def read_all(value: Any) -> tuple[Any, ...]:
        # A text is split at commas, as on the command line.
        if isinstance(value, str):
            return tuple(read_one(x) for x in _parts(value)[: ENTRIES + 1])
        entries = _several(value)
        # A string in a list is no number, though it may look like one.
        if any(isinstance(x, str) for x in entries):
            raise RequestError
        return tuple(read_one(x) for x in entries)

    return read_all


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        # A text alone is one entry, since it may hold commas.
        entries = (value,)
    else:
        entries = _several(value)
    if not all(isinstance(x, str) and 1 <= len(x) <= LETTERS for x in entries):
        raise RequestError
    return entries


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        entries = _parts(value)
    else:
        entries = _several(value)
    words = [_word(x).strip() for x in entries]
    return tuple(word for word in words if word)


def _several(value: Any) -> tuple[Any, ...]:
    """The entries of a list, a tuple or a set."""
    # Bytes are a sequence, too, of numbers that nobody meant.
    if isinstance(value, bytes) or not isinstance(value, (Sequence, Set)):
        raise RequestError
    entries = cast(Collection[Any], value)
    if len(entries) > ENTRIES:
        raise RequestError
    return tuple(entries)


def _by_name(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(k, str) for k in cast(Mapping[Any, Any], value)
    ):
        raise RequestError
    return cast(Mapping[str, Any], value)


def _itself(value: Any) -> Any:
    return value


def _by_token(value: Any) -> dict[int, float]:
    if isinstance(value, str):
        pairs: list[tuple[Any, Any]] = [
            (k, v) for k, _, v in (x.partition(":") for x in _parts(value))
        ]
    elif isinstance(value, Mapping):
        pairs = list(cast(Mapping[Any, Any], value).items())
        if any(isinstance(v, str) for _, v in pairs):
            raise RequestError
    else:
        raise RequestError
    if len(pairs) > ENTRIES:
        raise RequestError
    out = {_whole(k): _number(v) for k, v in pairs}
    # The same id given twice, or a negative one.
    if len(out) != len(pairs) or min(out, default=0) < 0:
        raise RequestError
    return out


def _parts(text: str) -> list[str]:
    if text.strip():
        return text.split(",", ENTRIES)
    return []


def _entries(value: Any) -> tuple[Any, ...]:
    """What limits are asked of: the entries of a tuple, the values of a mapping, else the value
    itself.
    """
    if isinstance(value, Mapping):
        return tuple(cast(Mapping[int, float], value).values())
    if isinstance(value, tuple):
        return cast(tuple[Any, ...], value)
    return (value,)


_MANY: tuple[Any, ...] = (tuple, Mapping)
_SPOKEN: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    tuple[int, ...]: "whole numbers such as 2,1,1",
    tuple[float, ...]: "numbers such as 10,8,6",
    tuple[str, ...]: f"texts of 1 to {LETTERS} characters",
    CommaList: "words such as this,that",
    MultilineText: f"a text of at most {LETTERS} characters",
    Mapping[int, float]: "numbers by token id such as 5:1.5,7:-2",
    Mapping[str, Any]: "values by name",
    object: "",
}
_READ: dict[Any, Callable[[Any], Any]] = {
    int: _whole,
    float: _number,
    bool: _truth,
    str: _word,
    tuple[int, ...]: _list_of(_whole),
    tuple[float, ...]: _list_of(_number),
    tuple[str, ...]: _texts,
    CommaList: _names,
    MultilineText: _passage,
    Mapping[int, float]: _by_token,
    Mapping[str, Any]: _by_name,
    object: _itself,
}
_SCHEMA: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
    int: lambda each: {"type": "integer", **each},
    float: lambda each: {"type": "number", **each},
    bool: lambda each: {"type": "boolean"},
    str: lambda each: {"type": "string", **each},
    tuple[int, ...]: lambda each: {"type": "array", "items": {"type": "integer", **each}},
    tuple[float, ...]: lambda each: {"type": "array", "items": {"type": "number", **each}},
    tuple[str, ...]: lambda each: {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string", **each}}]
    },
    CommaList: lambda each: {"type": "array", "items": {"type": "string", **each}},
    MultilineText: lambda each: {"type": "string", **each},
    Mapping[str, Any]: lambda each: {"type": "object"},
    object: lambda each: {},
    Mapping[int, float]: lambda each: {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", **each},
    },
}


def at_least_one(of: object, *names: str) -> None:
    """Check that fields are 1 or more.

    Args:
        of: The object.
        names: Names of its fields.

    Raises:
        RequestError: Names the first field that is below 1.
    """
    for name in names:
        if getattr(of, name) < 1:
            raise RequestError(f"{name} is {getattr(of, name)}: it must be at least 1")


def above_zero(of: object, *names: str) -> None:
    """Check that fields are above 0. NaN is not.

    Args:
        of: The object.
        names: Names of its fields.

    Raises:
        RequestError: Names the first field that is not above 0.
    """
    for name in names:
        if not getattr(of, name) > 0:
            raise RequestError(f"{name} is {getattr(of, name)}: it must be above 0")
