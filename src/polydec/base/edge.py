"""The edge where a user's files and flags come in: typed records, and how what is wrong with them is said."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from polydec.base.errors import RequestError
from polydec.base.lazy_names import looked_up

if TYPE_CHECKING:
    from pydantic import BaseModel

    from polydec.base.outside_records import StrictRecord as StrictRecord

LONGEST = 300
"""Characters of an error's sentence."""
LARGEST_TEXT = 1 << 28
"""Bytes of a text file that is read as a whole."""
_WORD = 100  # characters of a path or a name in a sentence
_BRANCH = re.compile(
    r"\[|^(constrained-)?(int|float|str|bool)$"
)  # which branch of a union it was, pydantic says
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 3
_SHORT.maxstring = 60
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_control_characters(text: str) -> str:
    """The text as a terminal may have it: of control characters only line feed and tab stay; every
    other one (and what turns the direction of writing) is written as its escape, `\\x1b`.
    """
    return _HIDDEN.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def error_sentence(problem: object) -> str:
    """What an error says: one line of at most LONGEST characters without control characters. A
    sentence stays as it is.
    """
    # The cut comes before anything that takes time for each character.
    text = str(problem)[: 64 * LONGEST]  # a message can be as long as the file that it speaks of
    # Long words, such as paths, lose their middle: beginning and end say most.
    words = [
        w if len(w) <= _WORD else f"{w[: _WORD // 2]}…{w[1 - _WORD // 2 :]}"
        for w in escape_control_characters(text).split()
    ]
    line = " ".join(words)
    return (
        line if len(line) <= LONGEST else line[: LONGEST - 2].rstrip() + " …"
    )  # a word of its own: none grows longer


@contextmanager
def user_function_errors(name: str, where: str) -> Iterator[None]:
    """Say in one sentence what a function of the user's raises.

    Args:
        name: Name of the field that holds the function.
        where: Where it was called, as the sentence goes on behind the error's kind.

    Raises:
        RequestError: The function raised something.
    """
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        raise RequestError(error_sentence(f"{name} raised {kind} {where}: {error}")) from error


# looked up when somebody first asks: most of what comes from outside is no record, and pydantic takes a while to load
__getattr__ = looked_up(__name__, {"polydec.base.outside_records": ("StrictRecord",)})

R = TypeVar("R", bound="BaseModel")


def validate_record(kind: type[R], data: Any, what: str) -> R:
    """Check data from outside against a record type.

    Args:
        kind: The record type.
        data: What JSON or YAML holds.
        what: How an error begins, such as the file.

    Returns:
        The record.

    Raises:
        RequestError: One sentence that begins with `what` and names the first wrong field.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # The first error is enough: one sentence is said.
        first = error.errors(include_url=False, include_context=False)[0]
        names = [x for x in first["loc"] if isinstance(x, int) or not _BRANCH.search(x)]
        # The path to the field, with long names and deep paths cut.
        field = ".".join(str(x)[:40] for x in names[:4])
        if first["type"] == "missing":
            raise RequestError(error_sentence(f"{what}: {field} is missing")) from None
        # pydantic's words, without the openings that a sentence does not need.
        message = (
            first["msg"]
            .removeprefix("Value error, ")
            .removeprefix("Input ")
            .replace("should be", "must be")
        )
        if field:
            subject = f"{field} is {_spoken(first['input'])}"
        else:
            subject = "it"
        raise RequestError(error_sentence(f"{what}: {subject}: {message}")) from None


def _spoken(value: Any) -> str:
    """A value as a sentence may have it. Python refuses to write out a number of thousands of
    digits.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:
        return f"a {type(value).__name__} that is too long to write"


Pairs = Callable[[list[tuple[str, Any]]], dict[str, Any]]
"""Makes an object of its members."""


def _no_number(name: str) -> float:
    raise RequestError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise RequestError(f"{digits[:40]} is larger than any number")
    return value


def parse_json(
    text: str | bytes, what: str, pairs: Pairs | None = None, *, finite: bool = False
) -> Any:
    """Parse a JSON text.

    Args:
        text: The text.
        what: How an error begins, such as the file.
        pairs: Makes an object of its members. None: a dict.
        finite: Whether NaN, Infinity and numbers that overflow are refused: no answer could say
            them, though Python reads them and the files of models hold some. Default False.

    Returns:
        The value.

    Raises:
        RequestError: One sentence; also for a text that is nested too deeply.
    """
    numbers: dict[str, Any] = (
        {"parse_constant": _no_number, "parse_float": _finite} if finite else {}
    )
    try:
        return json.loads(text, object_pairs_hook=pairs, **numbers)
    except RecursionError:
        raise RequestError(
            error_sentence(f"{what} is not a JSON object: it is nested too deeply")
        ) from None
    except ValueError as error:
        raise RequestError(error_sentence(f"{what} is not a JSON object: {error}")) from None


def parse_object(
    text: str | bytes, what: str, pairs: Pairs | None = None, *, finite: bool = False
) -> dict[str, Any]:
    """Parse a JSON text that must hold an object.

    Args:
        text: The text.
        what: How an error begins, such as the file.
        pairs: As for `parse_json`.
        finite: As for `parse_json`.

    Returns:
        The object.

    Raises:
        RequestError: The text is no JSON, or holds another value.
    """
    value = parse_json(text, what, pairs, finite=finite)
    if not isinstance(value, dict):
        raise RequestError(
            error_sentence(f"{what} is not a JSON object: it is a {type(value).__name__}")
        )
    return value


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Read a file or a pipe.

    Args:
        path: The file.
        most: Most bytes that it may have. Default LARGEST_TEXT.

    Returns:
        Its content.

    Raises:
        RequestError: It cannot be read, is no ordinary file, or is larger; one sentence.
    """
    what = f"file {str(path)!r} cannot be read"
    try:
        about = path.stat()
        # A device or a folder could block, or never end.
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISFIFO(about.st_mode):
            raise RequestError("it is not an ordinary file")
        # The size is checked before reading, and again while reading: a pipe has none.
        if about.st_size > most:
            raise RequestError(f"it has more than {most} bytes")
        with path.open("rb") as file:
            return read_at_most(file, most)
    except OSError as error:
        raise RequestError(error_sentence(f"{what}: {error.strerror or error}")) from None
    except ValueError as error:  # such as a name with a zero in it
        raise RequestError(error_sentence(f"{what}: {error}")) from None


def decoded_text(content: bytes) -> str:
    """The text of a file's UTF-8, without the byte order mark that some programs write before it.
    Raises UnicodeDecodeError where it is no UTF-8.
    """
    return content.decode("utf-8-sig")


class ReadableFile(Protocol):
    """An open file of bytes."""

    def read(self, size: int, /) -> bytes: ...


def read_at_most(file: ReadableFile, most: int) -> bytes:
    """Read all that is left of a stream.

    Args:
        file: An open file of bytes.
        most: Most bytes that may be left.

    Returns:
        The bytes.

    Raises:
        RequestError: There are more.
    """
    parts = list[bytes]()
    left = most
    while part := file.read(1 << 20):
        parts.append(part)
        left -= len(part)
        # Stop at the first part that is too much, so that memory stays bounded.
        if left < 0:
            raise RequestError(f"it has more than {most} bytes")
    return b"".join(parts)


def json_value_or_none(text: str) -> Any:
    """The JSON value that a model's text is; None where it is none."""
    try:
        return json.loads(text)
    # A model may open brackets without an end, or write a number of thousands of digits.
    except (ValueError, RecursionError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises RequestError with one sentence where it is none."""
    return parse_object(read_bytes(path), f"file {str(path)!r}")


def read_json_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Read JSON files of a folder, each of which holds an object.

    Args:
        folder: The folder.
        names: The files' names.

    Returns:
        What each file holds, by its name; nothing for one that is not there.

    Raises:
        RequestError: A file cannot be read, or holds something else; one sentence.
    """
    paths = {name: folder / name for name in names}
    return {name: read_json(path) if path.is_file() else {} for name, path in paths.items()}


def path_text(value: object, what: str) -> str:
    """A name or a path as a text.

    Args:
        value: A text, or what stands for a path (`os.PathLike`).
        what: What messages call it.

    Returns:
        The text of it.

    Raises:
        RequestError: Where it is something else, with one sentence.
    """
    if isinstance(value, os.PathLike):
        path = value.__fspath__()
    else:
        path = value
    if not isinstance(path, str):
        raise RequestError(
            error_sentence(
                f"{what} is {_spoken(value)}, of the type {type(value).__name__}: it must be a text or a path"
            )
        )
    return path


def whole_text(text: str, what: str) -> str:
    r"""Check that a text holds complete characters only.

    Args:
        text: The text. Bytes that are no UTF-8 on the command line, and `\ud800` in JSON, give
            halves of characters.
        what: How an error begins.

    Returns:
        The text.

    Raises:
        RequestError: A half of a character stands in it.
    """
    # Encoding fails at the first half of a surrogate pair.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            error_sentence(
                f"{what} holds half a character at {error.start}: it must be whole Unicode text"
            )
        ) from None
    return text


def require_integer(name: str, value: int, low: int, high: int) -> int:
    """Check that an integer lies in a range.

    Args:
        name: Name of the option, for the error.
        value: The integer.
        low: Smallest legal value.
        high: Largest legal value.

    Returns:
        The value.

    Raises:
        RequestError: It lies outside.
    """
    if not low <= value <= high:
        raise RequestError(
            f"{name} is {_short(value)}: it must be at least {low}"
            if value < low
            else f"{name} is {_short(value)}: it can be at most {high}"
        )
    return value


def _short(value: int) -> str:
    if abs(value) < 10**30:
        return str(value)
    return f"{'-' if value < 0 else ''}a number of about {_digits(value)} digits"


def _digits(value: int) -> int:
    # log10(2) digits for each bit: writing the number out may take minutes, or is refused.
    return int(abs(value).bit_length() * 0.30103) + 1


def most_threads() -> int:
    """How many threads may be asked for here: four times the cores, and 4 to 1,024 in all. torch
    ends the process at 40,000.
    """
    return min(1024, max(4, 4 * (os.cpu_count() or 1)))
