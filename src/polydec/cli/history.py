"""What was typed in earlier chats, for the arrow keys: one bounded file, a line each, that only its
owner can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from polydec.base import files
from polydec.base.edge import error_sentence, escape_control_characters, read_bytes
from polydec.base.errors import PolydecError, RequestError

LINES = 1000
LONGEST = 4096
"""Most lines that are kept, and most characters of one: a longer line is left out."""


def history_path() -> Path:
    """The history's file, $XDG_STATE_HOME/polydec/chat_history.

    Raises:
        RequestError: There is no home folder to put it in.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise RequestError("there is no home folder (XDG_STATE_HOME names another place)") from None
    return Path(state) / "polydec" / "chat_history"


def filter_history_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that a history holds: the last LINES of them, none that is empty, too long, with
    control characters, or equal to the one before.
    """
    out = list[str]()
    # An equal neighbour would only lengthen the way back with the arrow keys.
    for line in lines:
        if line.strip() and len(line) <= LONGEST and _plain(line) and out[-1:] != [line]:
            out.append(line)
    return tuple(out[-LINES:])


def _plain(line: str) -> bool:
    """Whether it is one line without control characters, which a terminal would obey."""
    return "\n" not in line and escape_control_characters(line) == line


def read_history(at: Path) -> tuple[str, ...]:
    """The lines of a history, oldest first; none where there is no such file, or it is no text of
    ours.
    """
    # The file is not there or cannot be read, or a byte is no UTF-8.
    with suppress(ValueError):
        text = read_bytes(at, most=4 * LINES * (LONGEST + 1)).decode("utf-8")
        return filter_history_lines(text.split("\n"))
    return ()


def append_history_line(at: Path, line: str) -> None:
    """Add a line to a history, after those that another chat has written meanwhile.

    Args:
        at: The history's file.
        line: The line; one that a history does not hold is left out.

    Raises:
        OSError: The file cannot be written.
        ValueError: The file cannot be written.
    """
    if not filter_history_lines([line]):
        return
    with files.hold_file_lock(at, wait=1.0):
        # Read again under the lock: another chat may have written since.
        files.replace_file_atomically(
            at, lambda new: _write(new, filter_history_lines([*read_history(at), line])), mode=0o600
        )


def _write(at: Path, lines: Sequence[str]) -> None:
    # Readable by its owner alone, from the first byte on.
    with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8"))


def readline_line_reader(
    readline: Any, prompt: str, tell: Callable[[str], None]
) -> Callable[[], str]:
    """Make the function that asks for a line with the editing of Python's readline.

    Lines are written to the history until that fails once, which is reported; the arrow keys bring
    them back all the same.

    Args:
        readline: Python's module of that name.
        prompt: What stands before the line.
        tell: Called with a notice for the user.

    Returns:
        The function.
    """
    # Readline would remember lines that a history does not hold.
    readline.set_auto_history(False)
    at: Path | None = None
    try:
        at = history_path()
    except PolydecError as error:
        tell(_off(error))
    for line in read_history(at) if at else ():
        readline.add_history(line)

    def ask_once() -> str:
        nonlocal at
        line = input(prompt)
        if not filter_history_lines([line]):
            return line
        readline.add_history(line)
        try:
            if at:
                append_history_line(at, line)
        # A history that cannot be written is given up, and the chat goes on.
        except (OSError, ValueError) as error:
            at = None
            tell(_off(error))
        return line

    return ask_once


def _off(error: Exception) -> str:
    return error_sentence(f"what you type is not kept for later chats: {error}")
