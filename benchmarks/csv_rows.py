"""Rows of figures, as a file that other programs read."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line each, below the names of the first one's columns, which all have. At least one row is needed."""
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.DictWriter(f, [*rows[0]], lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def merge_csv(path: str | Path, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Put rows into a file that may have some already: those of the same values of `keys` are replaced, and all are sorted by
    these."""
    held = dict[tuple[str, ...], Mapping[str, Any]]()
    if Path(path).exists():
        with open(path, newline="", encoding="utf-8") as f:
            held = {tuple(row[key] for key in keys): row for row in csv.DictReader(f)}
    held |= {tuple(str(row[key]) for key in keys): row for row in rows}
    write_csv(path, [held[at] for at in sorted(held)])
