"""A canvas as it fills, from a trace: for a terminal, and as a page of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from polydec.base.edge import escape_control_characters
from polydec.base.page_templates import render_page_template
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent

GAP = "·"


@dataclass(frozen=True)
class CanvasCell:
    """A position of the answer.

    Attributes:
        piece: Its text; None for a gap.
        sure: The model's probability of it, 0 to 1.
        new: Whether this pass wrote it.
        guess: Of a gap what the model would have written there and was not sure enough of; None
            elsewhere.
    """

    piece: str | None = None
    sure: float = 0.0
    new: bool = False
    guess: str | None = None


@dataclass(frozen=True)
class CanvasFrame:
    """The canvas after a pass.

    Attributes:
        step: Number of the pass, from 0.
        fed: Positions that ran in it.
        cells: The positions of the answer.
    """

    step: int
    fed: int
    cells: tuple[CanvasCell, ...]

    @property
    def filled(self) -> list[CanvasCell]:
        """What the pass wrote."""
        return [c for c in self.cells if c.new]


def canvas_frames(
    prompt: int,
    passes: Sequence[UnmaskedEvent],
    back: Mapping[int, RemaskedEvent] = MappingProxyType({}),
) -> Iterator[CanvasFrame]:
    """The canvas after every pass.

    Args:
        prompt: Positions before the answer.
        passes: What each pass wrote, in order.
        back: What passes put back, by the number of the pass, from 0. Default: nothing.

    Yields:
        A frame for each pass.
    """
    # A trace does not say how long the canvas is: it reaches to the last position that a pass could
    # fill.
    length = (
        max((p + 1 for e in passes for p in (*e.position, e.block[1] - 1)), default=prompt) - prompt
    )
    cells = [CanvasCell()] * max(length, 0)
    for n, e in enumerate(passes):
        # What was new, and what was guessed, belongs to the pass before.
        cells = [replace(c, new=False, guess=None) for c in cells]
        if n in back:
            for p, piece, sure in zip(back[n].position, back[n].piece, back[n].confidence):
                if 0 <= p - prompt < length:
                    cells[p - prompt] = CanvasCell(None, sure, guess=piece)
        # After the guesses: a position that was filled is no guess.
        for p, piece, sure in zip(e.position, e.piece, e.confidence):
            cells[p - prompt] = CanvasCell(piece, sure, True)
        yield CanvasFrame(e.step, e.fed[1] - e.fed[0], tuple(cells))


def canvas_line(frame: CanvasFrame) -> Text:
    """The canvas on one line: gaps as dots, what was just written in green."""
    out = Text()
    for c in frame.cells:
        if c.piece is None:
            piece = GAP
        else:
            # Line breaks and tabs become signs, so that a pass stays on one line; an empty piece is
            # an end.
            piece = escape_control_characters(c.piece).replace("\n", "⏎").replace("\t", "⇥") or "∎"
        out.append(piece, "bold green" if c.new else "dim" if c.piece is None else "")
    return out


def canvas_table(shown: Sequence[CanvasFrame]) -> Table:
    """A line a pass."""
    out = Table(box=None, pad_edge=False)
    for column in ("pass", "filled", "least sure"):
        out.add_column(column, justify="right", no_wrap=True)
    out.add_column("canvas", no_wrap=True, overflow="ellipsis")
    for f in shown:
        least = min((c.sure for c in f.filled), default=0.0)
        out.add_row(str(f.step + 1), str(len(f.filled)), f"{least:.3f}", canvas_line(f))
    return out


def play_canvas_frames(console: Console, shown: Sequence[CanvasFrame], delay: float) -> None:
    """Show frames one after the other in place; elsewhere than on a terminal only the last one is
    printed.

    Args:
        console: Where to show them.
        shown: The frames.
        delay: Seconds for each, 0 or more.
    """
    with Live(console=console, auto_refresh=False) as live:
        for f in shown:
            live.update(
                Text(f"pass {f.step + 1:3}  ", "dim").append_text(canvas_line(f)), refresh=True
            )
            # In a pipe there is nothing to watch.
            time.sleep(delay if console.is_terminal else 0.0)


def canvas_page_html(title: str, choices: Sequence[tuple[str, Sequence[CanvasFrame]]]) -> str:
    """Make one HTML page, without scripts or anything from elsewhere: a row a pass, a cell a
    position.

    A cell is the greener the surer the model was; what a pass wrote has a frame.

    Args:
        title: Title of the page.
        choices: Headings, each with its frames.

    Returns:
        The page.
    """
    return render_page_template("cli/canvas.html.jinja", title=title, choices=choices)
