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

from polydec.base.edge import printable
from polydec.methods.diffusion.loop.events import Remasked, Unmasked

GAP = "·"


@dataclass(frozen=True)
class Cell:
    """A position of the answer. piece: its text, None for a gap; sure: the model's probability of it; new: written just now;
    guess: of a gap what the model would have written there, and was not sure enough of."""

    piece: str | None = None
    sure: float = 0.0
    new: bool = False
    guess: str | None = None


@dataclass(frozen=True)
class Frame:
    """The canvas after a pass."""

    step: int
    fed: int
    cells: tuple[Cell, ...]

    @property
    def filled(self) -> list[Cell]:
        """What the pass wrote."""
        return [c for c in self.cells if c.new]


def frames(
    prompt: int, passes: Sequence[Unmasked], back: Mapping[int, Remasked] = MappingProxyType({})
) -> Iterator[Frame]:
    """The canvas after every pass; prompt: positions before it; back: by the number of a pass, from 0, what it put back."""
    length = (
        max((p + 1 for e in passes for p in (*e.position, e.block[1] - 1)), default=prompt) - prompt
    )
    cells = [Cell()] * max(length, 0)
    for n, e in enumerate(passes):
        cells = [replace(c, new=False, guess=None) for c in cells]
        if n in back:
            for p, piece, sure in zip(back[n].position, back[n].piece, back[n].confidence):
                if 0 <= p - prompt < length:
                    cells[p - prompt] = Cell(None, sure, guess=piece)
        for p, piece, sure in zip(e.position, e.piece, e.confidence):
            cells[p - prompt] = Cell(piece, sure, True)
        yield Frame(e.step, e.fed[1] - e.fed[0], tuple(cells))


def line(frame: Frame) -> Text:
    """The canvas on one line: gaps as dots, what was just written in green."""
    out = Text()
    for c in frame.cells:
        piece = (
            GAP
            if c.piece is None
            else printable(c.piece).replace("\n", "⏎").replace("\t", "⇥") or "∎"
        )
        out.append(piece, "bold green" if c.new else "dim" if c.piece is None else "")
    return out


def table(shown: Sequence[Frame]) -> Table:
    """A line a pass."""
    out = Table(box=None, pad_edge=False)
    for column in ("pass", "filled", "least sure"):
        out.add_column(column, justify="right", no_wrap=True)
    out.add_column("canvas", no_wrap=True, overflow="ellipsis")
    for f in shown:
        least = min((c.sure for c in f.filled), default=0.0)
        out.add_row(str(f.step + 1), str(len(f.filled)), f"{least:.3f}", line(f))
    return out


def watch(console: Console, shown: Sequence[Frame], delay: float) -> None:
    """Play them in place, `delay` seconds each; elsewhere than on a terminal the last one is printed."""
    with Live(console=console, auto_refresh=False) as live:
        for f in shown:
            live.update(Text(f"pass {f.step + 1:3}  ", "dim").append_text(line(f)), refresh=True)
            time.sleep(delay if console.is_terminal else 0.0)


_STYLE = """
body{font:14px/1.6 system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse;margin:.5em 0 2em}td{padding:.1em .35em;white-space:pre;font-family:monospace}
th{text-align:right;font-weight:400;color:#777;padding:0 .8em 0 0}
.g{color:#bbb}.n{outline:2px solid #1a7f37;border-radius:3px}
"""


def page(title: str, choices: Sequence[tuple[str, Sequence[Frame]]]) -> str:
    """One HTML page without scripts or anything from elsewhere: a row a pass, a cell a position, greener where the model was
    surer; what a pass wrote has a frame."""
    rows = list[str]()
    for heading, shown in choices:
        rows.append(f"<h2>{html.escape(printable(heading))}</h2><table>")
        for f in shown:
            rows.append(f"<tr><th>pass {f.step + 1}, {len(f.filled)} filled</th>{cells(f)}</tr>")
        rows.append("</table>")
    name = html.escape(printable(title))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
        f"<h1>{name}</h1>{''.join(rows)}</html>\n"
    )


def cells(frame: Frame) -> str:
    """A row of a page's table."""
    return "".join(_cell(c) for c in frame.cells)


def _cell(c: Cell) -> str:
    if c.piece is None and c.guess is not None:
        told = html.escape(printable(c.guess).replace("\n", "⏎") or "∎")
        return f'<td class="g" title="put back, {c.sure:.3f}">{told}</td>'
    if c.piece is None:
        return f'<td class="g">{GAP}</td>'
    text = html.escape(printable(c.piece).replace("\n", "⏎") or "∎")
    light = 97 - 42 * max(0.0, min(1.0, c.sure))
    return f'<td{" class=n" if c.new else ""} style="background:hsl(140 60% {light:.0f}%)" title="{c.sure:.3f}">{text}</td>'
