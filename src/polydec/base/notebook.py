"""What a notebook shows of an answer and of a model: HTML that needs no script and no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Protocol

DRAFTED = "background:rgba(46,160,67,.28);border-radius:2px"
"""How text that was drafted and accepted stands out, on a light page and on a dark one."""


class Shown(Protocol):
    """A piece of a text: what it says, and whether it was drafted."""

    @property
    def text(self) -> str: ...
    @property
    def drafted(self) -> bool: ...


def coloured(pieces: Iterable[Shown]) -> str:
    """A text in one block, what was drafted in it coloured."""
    spans = [
        f'<span style="{DRAFTED}">{escape(p.text)}</span>' if p.drafted else escape(p.text)
        for p in pieces
    ]
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div>'


def answer(texts: Sequence[str], facts: Sequence[str], legend: bool) -> str:
    """Some answers, which are HTML already, and a line of facts below them; legend: say what the colour means."""
    said = [f'<span style="{DRAFTED}">drafted and accepted</span>'] if legend else []
    line = " · ".join([*said, *map(escape, facts)])
    return f'{"<hr>".join(texts)}<div style="opacity:.7;font-size:85%">{line}</div>'


def table(facts: Mapping[str, object]) -> str:
    """Names and values, a row each."""
    rows = [
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    ]
    return f"<table>{''.join(rows)}</table>"
