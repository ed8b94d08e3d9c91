"""A canvas as it fills, from a trace: for a terminal, and as a page of its own."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from polydec.base.edge import escape_control_characters
from polydec.methods.diffusion.loop.events import RemaskedEvent, UnmaskedEvent

GAP = "·"


@dataclass(frozen=True)
class CanvasCell:
    """A position of the answer. piece: its text, None for a gap; sure: the model's probability of it; new: written just now;
    guess: of a gap what the model would have written there, and was not sure enough of."""

    piece: str | None = None
    sure: float = 0.0
    new: bool = False
    guess: str | None = None


@dataclass(frozen=True)
class CanvasFrame:
    """The canvas after a pass."""

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
    """The canvas after every pass; prompt: positions before it; back: by the number of a pass, from 0, what it put back."""
    length = (
        max((p + 1 for e in passes for p in (*e.position, e.block[1] - 1)), default=prompt) - prompt
    )
    cells = [CanvasCell()] * max(length, 0)
    for n, e in enumerate(passes):
        cells = [replace(c, new=False, guess=None) for c in cells]
        if n in back:
            for p, piece, sure in zip(back[n].position, back[n].piece, back[n].confidence):
                if 0 <= p - prompt < length:
                    cells[p - prompt] = CanvasCell(None, sure, guess=piece)
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
    """Play them in place, `delay` seconds each; elsewhere than on a terminal the last one is printed."""
    with Live(console=console, auto_refresh=False) as live:
        for f in shown:
            live.update(
                Text(f"pass {f.step + 1:3}  ", "dim").append_text(canvas_line(f)), refresh=True
            )
            time.sleep(delay if console.is_terminal else 0.0)


_STYLE = """
body{font:14px/1.6 system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse;margin:.5em 0 2em}td{padding:.1em .35em;white-space:pre;font-family:monospace}
th{text-align:right;font-weight:400;color:#777;padding:0 .8em 0 0}
.g{color:#bbb}.n{outline:2px solid #1a7f37;border-radius:3px}
"""


def canvas_page_html(title: str, choices: Sequence[tuple[str, Sequence[CanvasFrame]]]) -> str:
    """One HTML page without scripts or anything from elsewhere: a row a pass, a cell a position, greener where the model was
    surer; what a pass wrote has a frame."""
    rows = list[str]()
    for heading, shown in choices:
        rows.append(f"<h2>{html.escape(escape_control_characters(heading))}</h2><table>")
        for f in shown:
            rows.append(
                f"<tr><th>pass {f.step + 1}, {len(f.filled)} filled</th>{frame_cells_html(f)}</tr>"
            )
        rows.append("</table>")
    name = html.escape(escape_control_characters(title))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
        f"<h1>{name}</h1>{''.join(rows)}</html>\n"
    )


def frame_cells_html(frame: CanvasFrame) -> str:
    """A row of a page's table."""
    return "".join(_cell(c) for c in frame.cells)


def _cell(c: CanvasCell) -> str:
    if c.piece is None and c.guess is not None:
        told = html.escape(escape_control_characters(c.guess).replace("\n", "⏎") or "∎")
        return f'<td class="g" title="put back, {c.sure:.3f}">{told}</td>'
    if c.piece is None:
        return f'<td class="g">{GAP}</td>'
    text = html.escape(escape_control_characters(c.piece).replace("\n", "⏎") or "∎")
    light = 97 - 42 * max(0.0, min(1.0, c.sure))
    return f'<td{" class=n" if c.new else ""} style="background:hsl(140 60% {light:.0f}%)" title="{c.sure:.3f}">{text}</td>'
