"""Compares figures of a page with those of committed result files: tables row by row, sentences by their words.

Nothing is said here of any page or file: lab/reports/results.py names them.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
Row = Mapping[str, str]

FIGURE = re.compile(r"(?<![\w.,])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
"""A number as a page writes it. One inside a word (a version, a name) is none."""
DECIMAL = re.compile(r"(?<![\w.-])\d+\.\d+(?!\w|\.\d)")
"""What counts as a measured figure where coverage is asked for."""


@dataclass(frozen=True)
class Run:
    """Where figures come from. file: below the root; command: what made it; machine: where; commit: of the library that ran;
    copied: whether the file holds what pages said, since the run's own output was not kept."""

    file: str
    command: str
    machine: str
    commit: str
    copied: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        return table(self.file)


class Place(NamedTuple):
    """Of a table: the headings of two and of three signs that it stands under ("" for none), and how many tables of the page
    have begun like it before."""

    section: str
    part: str
    nth: int


@dataclass(frozen=True)
class Table:
    """Tables of a page that begin with `head`. values(place, cells) gives the figures of a row behind its `label` first
    cells, in order, as the file has them; None for a row that the file does not know. Tables for which `where` is false are
    others'."""

    page: str
    head: str
    run: Run
    values: Callable[[Place, Sequence[str]], Sequence[str] | None]
    label: int = 1
    where: Callable[[Place], bool] = lambda place: True


@dataclass(frozen=True)
class Sentence:
    """Words of a page with `{}` for each figure; spaces and line ends are alike. values: what the figures are, as the file has
    them."""

    page: str
    words: str
    run: Run
    values: Callable[[], Sequence[str]]


@cache
def table(file: str) -> tuple[Row, ...]:
    with (ROOT / file).open(encoding="utf-8") as opened:
        return tuple(csv.DictReader(opened))


def pick(run: Run, **where: str) -> Row | None:
    """The only row with these values; None where there is none."""
    rows = [r for r in run.rows if all(r[k] == v for k, v in where.items())]
    assert len(rows) < 2, (run.file, where)
    return rows[0] if rows else None


def column(rows: Sequence[Row], name: str) -> list[float]:
    return [float(r[name]) for r in rows]


def told(value: float) -> str:
    """A computed value with as many digits as a file would have."""
    return f"{value:.12g}"


# ---- comparing ----


def number(figure: str) -> float:
    return float(figure.replace(",", ""))


def unit(figure: str) -> float:
    """What its last digit counts."""
    mantissa, _, power = figure.lower().replace(",", "").partition("e")
    return 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))


def same(shown: str, value: str) -> bool:
    """Whether a page's figure is the file's, rounded to the digits that are shown. The file's own was rounded as well, so one
    that lies between two may have become either."""
    finer = unit(value) < unit(shown) * 0.9
    slack = (unit(shown) + unit(value)) / 2 if finer else 0.0
    return abs(number(shown) - number(value)) <= slack + 1e-9 * abs(number(value))


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


class Line(NamedTuple):
    number: int
    place: Place
    cells: tuple[str, ...]


def lines(page: str, head: str) -> Iterator[Line]:
    """The rows of all tables of a page that begin with this line."""
    section = part = ""
    nth, inside = -1, False
    for n, line in enumerate(text(page).splitlines()):
        if line.startswith("## "):
            section, part = line[3:], ""
        elif line.startswith("### "):
            part = line[4:]
        if not line.startswith("|"):
            inside = False
        elif line == head:
            nth, inside = nth + 1, True
        elif inside and not line.startswith("|---"):
            yield Line(
                n, Place(section, part, nth), tuple(c.strip() for c in line[1:-1].split("|"))
            )


def plain(cell: str) -> str:
    return cell.replace("**", "").replace("`", "").replace("\\*", "").strip()


def faults(entry: Table) -> list[str]:
    """What of a table is not what the file says."""
    out = list[str]()
    rows = [line for line in lines(entry.page, entry.head) if entry.where(line.place)]
    if not rows:
        return [f"{entry.page}: no table begins with {entry.head!r}"]
    for line in rows:
        shown = FIGURE.findall(" | ".join(map(plain, line.cells[entry.label :])))
        values = entry.values(line.place, tuple(map(plain, line.cells)))
        if values is None:
            out.append(f"{entry.page}, line {line.number + 1}: {entry.run.file} has no such row")
        elif len(shown) != len(values) or not all(map(same, shown, values)):
            out.append(f"{entry.page}, line {line.number + 1}: {shown}, the file has {values}")
    return out


def pattern(words: str) -> re.Pattern[str]:
    parts = [r"\s+".join(map(re.escape, p.split(" "))) for p in words.split("{}")]
    return re.compile(r"([-+]?[\d,]*\d(?:\.\d+)?)".join(parts))


def untrue(entry: Sentence) -> list[str]:
    """What of a sentence is not what the file says."""
    found = list(pattern(entry.words).finditer(text(entry.page)))
    if not found:
        return [f"{entry.page} does not say {entry.words!r}"]
    values = list(entry.values())
    return [
        f"{entry.page}: {match[0]!r}, the file has {values}"
        for match in found
        if len(match.groups()) != len(values) or not all(map(same, match.groups(), values))
    ]


# ---- coverage ----


def measured(page: str) -> list[tuple[int, int]]:
    """Where a page's figures stand: numbers with a decimal point, outside of code and of links."""
    whole = text(page)
    hidden = [
        m.span() for m in re.finditer(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", whole, re.S)
    ]
    return [
        m.span()
        for m in DECIMAL.finditer(whole)
        if not any(first <= m.start() < stop for first, stop in hidden)
    ]


def covered(
    page: str, tables: Sequence[Table], sentences: Sequence[Sentence], left: Sequence[str]
) -> tuple[int, int]:
    """How many figures a page has, and how many of them stand in a table or a sentence that is compared, or in words that are
    left out with a reason."""
    whole = text(page)
    begins = [0]
    for line in whole.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    spans = [
        (begins[line.number], begins[line.number + 1])
        for t in tables
        if t.page == page
        for line in lines(page, t.head)
        if t.where(line.place)
    ]
    spans += [
        m.span() for s in sentences if s.page == page for m in pattern(s.words).finditer(whole)
    ]
    spans += [m.span() for words in left for m in pattern(words).finditer(whole)]
    figures = measured(page)
    return len(figures), sum(any(a <= x < b for a, b in spans) for x, _ in figures)


def rewrite(page: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two marks of a page. With `--check` nothing is written: the program ends, with 1 where it differs."""
    before = page.read_text("utf-8")
    head, rest = before.split(begin)
    after = f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"
    if "--check" in sys.argv:
        sys.exit(after != before)
    page.write_text(after, "utf-8")
