"""The edge where model files come in: what they may hold, and how what is wrong with them is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polydec.base.edge import (
    LONGEST,
    error_sentence,
    escape_control_characters,
    path_text,
    read_json,
    read_json_files,
    validate_record,
)
from polydec.base.errors import FileError

__all__ = [
    "LONGEST",
    "error_sentence",
    "escape_control_characters",
    "first_line",
    "own_code",
    "path_text",
    "read_json",
    "read_json_files",
    "refuse_kernels",
    "report_read_errors",
    "validate_record",
]

# What libraries raise over damaged files, ValueError left out, which has a case of its own.
_WHAT_FILES_RAISE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


def first_line(e: BaseException) -> str:
    """The first line of an exception's message that says something, else the exception's name."""
    message = str(e)[: 64 * LONGEST]
    return next((line.strip() for line in message.splitlines() if line.strip()), type(e).__name__)


@contextmanager
def report_read_errors(what: str) -> Iterator[None]:
    """Turn whatever reading a file meets into a FileError of one sentence.

    Errors that already are sentences about it stay as they are. what: which file, and what was
    tried.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except ValueError as e:
        raise FileError(
            error_sentence(e if what in str(e) else f"{what}: {first_line(e)}")
        ) from None
    except _WHAT_FILES_RAISE as e:
        raise FileError(error_sentence(f"{what}: {_kind(e)}")) from None
    except BaseException as e:
        # Libraries in Rust raise panics and bare Exceptions over damaged files. Other errors are
        # faults of this program, not of the file.
        if (
            type(e).__name__ not in ("PanicException", "SafetensorError")
            and type(e) is not Exception
        ):
            raise  # a fault of this program, not of the file
        raise FileError(error_sentence(f"{what}: {first_line(e)}")) from None


def _kind(e: BaseException) -> str:
    if isinstance(e, RecursionError):
        return "it is nested too deeply"
    if isinstance(e, MemoryError):
        return "it asks for more memory than there is"
    if isinstance(e, LookupError):
        return f"{type(e).__name__}: {first_line(e)}"
    return first_line(e)


def refuse_kernels(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse attention kernels that a config names by repository.

    They are code as well, fetched from the Hub, and transformers would run it.

    Args:
        path: The config's file, for the message.
        config: Its content.

    Raises:
        FileError: It names one.
    """
    for part in (config, *(v for v in config.values() if isinstance(v, dict))):
        for key, value in part.items():
            if (
                key.endswith("_implementation")
                and value is not None
                and not (isinstance(value, str) and value.isidentifier())
            ):
                raise FileError(
                    error_sentence(
                        f"{path} has {key} = {value!r}: code that a checkpoint brings or names is never run, "
                        "eager and sdpa are legal"
                    )
                )


def own_code(path: Path) -> str:
    """The refusal of a file that names code of its own (auto_map), "" for one that names none."""
    if not path.is_file() or "auto_map" not in read_json(path):
        return ""
    return (
        f"{path.name} names code of its own (auto_map): code that a checkpoint brings is never run"
    )


def at_home(name: str | Path) -> Path:
    """The path of this name, in which `~` is the user's home and `~who` that of another one.

    Raises:
        FileError: There is no such user, or the name is too long for a file.
    """
    try:
        path = Path(name).expanduser()
        # Asked only because it raises where a name is too long, or has a null byte.
        path.exists()
        return path
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileError(
            error_sentence(f"{str(name)!r} cannot be the name of a file: {why}")
        ) from None
    except RuntimeError:
        raise FileError(
            error_sentence(f"{str(name)!r} begins with ~ and no user of that name is known here")
        ) from None
