"""What a notebook shows of an answer, of a model and of one that is writing: HTML that needs no script and no network."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

AFTER = 1.0
EVERY = 0.25
"""Seconds until progress is shown, as what is done by then needs none, and between two looks at
it.
"""

DRAFTED = "background:rgba(46,160,67,.28);border-radius:2px"
"""How text that was drafted and accepted stands out, on a light page and on a dark one."""


class NotebookPiece(Protocol):
    """A piece of a text: what it says, and whether it was drafted."""

    @property
    def text(self) -> str: ...
    @property
    def drafted(self) -> bool: ...


def pieces_html(pieces: Iterable[NotebookPiece]) -> str:
    """A text in one block, what was drafted in it coloured."""
    # Text is escaped, so that it cannot bring HTML of its own.
    spans = [
        f'<span style="{DRAFTED}">{escape(p.text)}</span>' if p.drafted else escape(p.text)
        for p in pieces
    ]
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'


def picture_html(png: str) -> str:
    """A picture, enlarged without blur. png: its file in base64."""
    style = "image-rendering:pixelated;min-width:8em"
    return f'<img style="{style}" src="data:image/png;base64,{png}">'


def answers_html(texts: Sequence[str], facts: Sequence[str], legend: bool) -> str:
    """Write some answers as HTML, with a line of facts below them.

    Args:
        texts: The answers, which are HTML already.
        facts: Plain texts for the line.
        legend: Whether the line says what the colour means.

    Returns:
        The HTML.
    """
    if legend:
        notes = [f'<span style="{DRAFTED}">drafted and accepted</span>']
    else:
        notes = []
    line = " · ".join([*notes, *map(escape, facts)])
    return f'{"<hr>".join(texts)}<div style="opacity:.7;font-size:85%">{line}</div>'


def facts_html(facts: Mapping[str, object]) -> str:
    """Names and values, a row each."""
    rows = [
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    ]
    return f"<table>{''.join(rows)}</table>"


@contextmanager
def show_notebook_progress(total: int, count: Callable[[], int]) -> Iterator[Callable[[], None]]:
    """Show below a notebook's cell how far a text is.

    Outside a notebook nothing is counted or shown.

    Args:
        total: Tokens of the complete text.
        count: Counts the tokens that are there.

    Yields:
        A function to be called again and again while something runs; it updates the display now and
        then.
    """
    show = _display()
    if show is None:
        yield _nothing
        return
    # Nothing is shown in the first second: most answers are short.
    due = time.monotonic() + AFTER
    handle = None

    def look_at_progress() -> None:
        nonlocal due, handle
        # Not more often than this: counting takes time, too.
        if time.monotonic() < due:
            return
        due = time.monotonic() + EVERY
        page = {
            "text/html": progress_bar_html(count(), total),
            "text/plain": f"{count()} of {total} tokens",
        }
        # The first look makes the display; later ones replace its content.
        if handle is None:
            handle = show(page, raw=True, display_id=True)
        else:
            handle.update(page, raw=True)

    try:
        yield look_at_progress
    finally:
        # What is left is empty: the answer itself is shown by somebody else.
        if handle is not None:
            handle.update({"text/html": "", "text/plain": ""}, raw=True)


def progress_bar_html(done: int, total: int) -> str:
    """Write a progress bar as HTML. An answer may end long before its last token.

    Args:
        done: Tokens that are there.
        total: Most tokens.

    Returns:
        The HTML.
    """
    line = f"{done} of at most {total} tokens"
    return (
        f'<progress value="{done}" max="{total}"></progress> <span style="opacity:.7">{line}</span>'
    )


def _nothing() -> None:
    pass


def _display() -> Any:
    """What shows something below a notebook's cell; None where this is no notebook. IPython is
    there before us if so.
    """
    # Nothing is imported: a notebook has loaded IPython already.
    python = sys.modules.get("IPython")
    if python is None:
        shell = None
    else:
        shell = python.get_ipython()
    if python is None or getattr(shell, "kernel", None) is None:
        return None
    return python.display.display
