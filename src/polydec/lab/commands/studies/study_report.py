"""What a suite is asked, what it tells, and how that is shown: a table, JSON, CSV, a page."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from polydec.base import files
from polydec.base.page_templates import render_page_template
from polydec.cli.flags import RequestFlags
from polydec.cli.terminal_output import as_csv, emit_drawn, print_result, table_cell_text
from polydec.request import machine

Row = Mapping[str, Any]


@dataclass(frozen=True)
class StudyRequest:
    """What the command line asks of a suite.

    Attributes:
        flags: The command's flags.
        methods: Methods as they are typed; None: the suite's own.
        from_: Where its questions or models are; None: not given.
        each: Problems of each task.
        record: File of answers that are kept; None: there is none.
    """

    flags: RequestFlags
    methods: str | None
    from_: Path | None
    each: int
    record: Path | None = None


@dataclass(frozen=True)
class StudyReport:
    """What a suite has measured, and how it is shown.

    Attributes:
        title: Title of the page.
        rows: All that was measured.
        columns: Columns of the table: a head, and the cell of a row.
        notes: Sentences below the table.
        figures: Headings and figures, as `svg_chart` draws them.
        words: Heads of columns that hold words, which stand on the left.
    """

    title: str
    rows: Sequence[Row]
    columns: Sequence[tuple[str, Callable[[Row], str]]]
    notes: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()
    words: Collection[str] = field(default=())


@dataclass(frozen=True)
class StudySuite:
    """A suite that measures by itself.

    Attributes:
        measure: Makes its report.
        each: What `--each` is where it is left out.
        takes: Fields of `RequestFlags` that it reads.
        methods: Whether it reads `--methods`.
        from_: Whether it reads `--from`.
        record: Whether it keeps answers in the file of `--record`.
    """

    measure: Callable[[StudyRequest], StudyReport]
    each: int
    takes: Collection[str] = ()
    methods: bool = False
    from_: bool = False
    record: bool = False


def format_percent(share: float) -> str:
    return f"{share:.1%}"


def format_percent_range(low: float, high: float) -> str:
    """A range of shares in percent.

    Args:
        low: Lower end, 0 to 1.
        high: Upper end, 0 to 1.

    Returns:
        The range with one digit after the point.
    """
    return f"{low:.1%}-{high:.1%}"


def publish_study(told: StudyReport, as_json: bool, html: Path | None, table: Path | None) -> None:
    """Print a report's table, or its JSON, and write a page and a file of figures where they are
    asked for.

    Args:
        told: The report.
        as_json: Whether standard output gets JSON in place of the table.
        html: The page's file; None: none.
        table: The CSV file; None: none.
    """
    command = f"polydec {shlex.join(sys.argv[1:])}"
    # Figures mean little without the machine: it stands in all forms of the report.
    where = machine.describe_machine()
    # Files first: they are written even where standard output cannot be.
    if html is not None:
        text = _page(told, command, where)
        files.replace_file_atomically(html, lambda at: Path(at).write_text(text, encoding="utf-8"))
    if table is not None:
        sheet = as_csv([dict(r) for r in told.rows])
        files.replace_file_atomically(
            table, lambda at: Path(at).write_text(sheet, encoding="utf-8")
        )
    if as_json:
        # Rows may be any mapping: JSON needs dicts.
        rows = [dict(r) for r in told.rows]
        print_result(json.dumps({"machine": where, "command": command, "rows": rows}))
        return

    def draw_figure(out: Console) -> None:
        shown = Table(box=None, pad_edge=False)
        # Words stand on the left, figures on the right.
        for name, _ in told.columns:
            if name in told.words:
                side = "left"
            else:
                side = "right"
            shown.add_column(name, no_wrap=True, justify=side)
        for row in told.rows:
            shown.add_row(*(table_cell_text(text(row)) for _, text in told.columns))
        out.print(shown)
        for note in (*told.notes, where):
            out.print(note, style="dim", soft_wrap=True, markup=False)

    emit_drawn(draw_figure)


def _page(told: StudyReport, command: str, where: str) -> str:
    return render_page_template(
        "lab/commands/studies/told.html.jinja",
        title=told.title,
        told=told,
        command=command,
        where=where,
        today=time.strftime("%Y-%m-%d"),
    )
