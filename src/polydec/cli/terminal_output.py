"""What reaches a terminal or a pipe."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.text import Text

from polydec.base.edge import escape_control_characters
from polydec.base.errors import RequestError


def terminal_text(text: str) -> str:
    """A model's or a file's text for standard output: a terminal gets no control characters, a pipe
    the text as it is."""
    if sys.stdout.isatty():
        return escape_control_characters(text)
    return text


def table_cell_text(text: str, longest: int = 200) -> Text:
    """A text that is not ours as a cell of a table: no markup is read in it, and it stays on one
    line.

    Args:
        text: The text.
        longest: Characters that stay. Default 200.

    Returns:
        The cell.
    """
    # Cut before it is split: a text may be megabytes long.
    return Text(" ".join(escape_control_characters(text[: 4 * longest]).split())[:longest])


def emit_drawn(draw: Callable[[Console], None], least: int = 120) -> None:
    """Print what is drawn on a console of a least width: a figure that is cut off says nothing.

    Args:
        draw: Draws on the console that it is given.
        least: Columns of the console at least. Default 120.
    """
    # Drawn on paper first, so that a failure to write can be handled for the whole text.
    paper = StringIO()
    draw(
        Console(
            file=paper,
            # Colours only where standard output is a terminal, although the console writes to
            # memory.
            force_terminal=sys.stdout.isatty(),
            highlight=False,
            width=max(least, Console().width),
        )
    )
    print_result(paper.getvalue().rstrip("\n"))


def print_result(text: str) -> None:
    """Write a result to standard output. Where that fails (a full disk) it goes to standard error,
    as it was long in the making.

    Raises:
        RequestError: Standard output cannot be written.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stderr.write(f"{text}\n")
        raise RequestError(
            f"standard output cannot be written ({error.strerror}): what it should hold stands above"
        ) from None


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; a cell of several figures has spaces between them."""

    def flat_value(value: Any) -> Any:
        return " ".join(map(str, value)) if isinstance(value, list) else value  # pyright: ignore

    out = StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(k for r in rows for k in r)))
    writer.writeheader()
    writer.writerows({k: flat_value(v) for k, v in r.items()} for r in rows)
    return out.getvalue()
