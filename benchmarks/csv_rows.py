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
