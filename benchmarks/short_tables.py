"""Moves the long tables of a page to CSV files beside it and leaves short ones.

Run `python benchmarks/short_tables.py lab/reports/PAGE.md`. It takes the tables as benchmarks/speculation_tables.py writes them
and changes no number. Short tables stay as they are, so new long ones can be pasted into the page
and the command run again: their rows are added to the files.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, str]

ROWS = 8
"""Methods that a short table keeps, beside plain."""

RATIO = re.compile(r"([\d.]+) \((?:([\d.]+) to ([\d.]+)|one task)\)")

KINDS = {
    "| method | all (95 %) |": "speed",
    "| method | tokens/s |": "passes",
    "| category | tasks | plain": "auto",
    "| method | greedy, batch 1 |": "overview",
}
"""How long tables begin, and the files that they go to: PAGE-speed.csv and so on."""

OF_AUTO = (
    "category",
    "tasks",
    "auto over plain, clock",
    "best fixed recipe",
    "auto over best, clock",
)


@dataclass(frozen=True)
class Table:
    """A table with the headings that it stands under."""

    section: str
    setting: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def check_all(self) -> list[Row]:
        """Every row by the names of its columns. A ratio with its interval is three columns: itself, low and high."""
        out = list[Row]()
        for cells in self.rows:
            row = {
                "section": self.section,
                "setting": self.setting,
                self.columns[0]: cells[0].removesuffix(" \\*"),
                "approximate": "yes" if cells[0].endswith("\\*") else "",
            }
            for column, cell in zip(self.columns[1:], cells[1:], strict=True):
                name, found = column.removesuffix(" (95 %)"), RATIO.fullmatch(cell)
                interval = (
                    {f"{name} low": found[2] or "", f"{name} high": found[3] or ""} if found else {}
                )
                row |= {name: found[1] if found else cell, **interval}
            out.append(row)
        return out

    def short(self, kind: str) -> list[str]:
        """What stays on the page."""
        few = [row for i, row in enumerate(self.rows) if i < ROWS or row[0] == "plain"]
        if kind == "speed":
            return _drawn(
                ["method", "over plain, all tasks (95 %)", "best workload", "worst workload"],
                [[*row[:2], *self._ends(row)] for row in few],
            )
        if kind == "overview":
            return _drawn(["fastest methods", *self.columns[1:]], few)
        if kind == "auto":
            return _drawn(
                OF_AUTO,
                [
                    [row[self.columns.index(c)] for c in OF_AUTO]
                    for row in self.rows
                    if row[0] == "all"
                ],
            )
        return []

    def _ends(self, row: Sequence[str]) -> list[str]:
        each = sorted(
            (float(cell), name)
            for name, cell in zip(self.columns[2:], row[2:], strict=True)
            if cell != "-"
        )
        if not each or row[0] == "plain":
            return ["-", "-"]
        return [f"{name} {value:.2f}" for value, name in (each[-1], each[0])]


def _drawn(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, *rows]
    out = [f"| {' | '.join(cells)} |" for cells in lines]
    return [out[0], "|---|" + "--:|" * (len(columns) - 1), *out[1:]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def shorten(text: str, page: str) -> tuple[str, dict[str, list[Row]]]:
    """The page with short tables, and the rows of each CSV file by its name."""
    out, files, section, setting, lines = (
        list[str](),
        dict[str, list[Row]](),
        "",
        "",
        text.split("\n"),
    )
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("## "):
            section, setting = line[3:], ""
        elif line.startswith("### "):
            setting = line[4:]
        kind = next((kind for start, kind in KINDS.items() if line.startswith(start)), None)
        if kind is None:
            out.append(line)
            at += 1
            continue
        end = next((i for i in range(at, len(lines)) if not lines[i].startswith("|")), len(lines))
        table, name = (
            Table(section, setting, _cells(line), [_cells(x) for x in lines[at + 2 : end]]),
            f"{page}-{kind}.csv",
        )
        short, at = table.short(kind), end
        files.setdefault(name, []).extend(table.check_all())
        out += [*short, *([""] if short else []), f"All rows and columns: [{name}]({name})."]
    return "\n".join(out), files


def main() -> None:
    page = Path(sys.argv[1])
    text, files = shorten(page.read_text("utf-8"), page.stem)
    for name, rows in files.items():
        path = page.with_name(name)
        if path.exists():
            with path.open(encoding="utf-8", newline="") as known:
                rows = [*csv.DictReader(known), *rows]
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, list(dict.fromkeys(c for row in rows for c in row)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
