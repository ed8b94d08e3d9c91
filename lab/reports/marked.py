"""Measured tables that no result file has: below each stands when it was measured, by which command and on which machine.

    *Measured at `6a7f3697`: `python benchmarks/serve.py`; two cores of an AMD EPYC (Zen 5).*

A commit is one that brought the figures: it has the library that ran, the benchmark, and the same figures on a page. A table
that repeats some figures of another page says so instead:

    *From `lab/reports/search-measured.md`.*

`lab/reports/test_marked.py` compares both, and fails where a table with figures has neither a
file (lab/reports/results.py) nor such a mark.

    python lab/reports/marked.py             # which table of which page has a file, a mark, or neither
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from made import FIGURE, ROOT, Table, number, plain, text

COMMIT = r"`[0-9a-f]{8}`"
MARK = re.compile(
    rf"\*Measured at ({COMMIT}(?: and {COMMIT})*): (`[^`]+`|by a script that was not kept); (.+)\.\*"
)
COPIED = re.compile(r"\*From `(lab/reports/[\w-]+\.md)`\.\*")
FENCE = "```"

DECIMAL = re.compile(r"(?<![\w.-])\d[\d,]*\.\d+(?:e-?\d+)?(?!\w|\.\d)")
UNIT = r"(?:%|x|ms|s|kB|KB|MB|GB|times|points|passes|nats|tokens(?: a second|/s)?|seconds)"
QUANTITY = re.compile(rf"(?<![\w.,])\d[\d,]*\s?{UNIT}(?!\w)")
HEADING = re.compile(
    r"(?<!\w)(?:%|ms|seconds|times|passes|points|nats|tokens(?: a (?:second|pass)|/s))"
)
"""Words of a column in which a whole number is a figure, too."""


@dataclass(frozen=True)
class Mark:
    """commits: that brought the figures; command, machine: what made them, and where."""

    commits: tuple[str, ...]
    command: str
    machine: str


@dataclass(frozen=True)
class Shown:
    """A table as a page shows it. line: of its head, from 1; rows: without the head and the line below it; mark: what stands
    below it, if it is one; source: the page that it repeats, "" where it repeats none."""

    page: str
    line: int
    head: str
    rows: tuple[str, ...]
    mark: Mark | None
    source: str

    @property
    def measured(self) -> bool:
        """Whether it shows a figure: a number with a point or a unit, or any number below a heading that names a unit."""
        found = any(DECIMAL.search(row) or QUANTITY.search(row) for row in map(bare, self.rows))
        return found or bool(
            HEADING.search(bare(self.head)) and any(map(FIGURE.search, map(bare, self.rows)))
        )


def bare(row: str) -> str:
    """Without code, links' addresses and the signs of bold."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)|\*\*", "", row)


def tables(page: str) -> Iterator[Shown]:
    """All tables of a page, also those inside a list; none of a block of code."""
    lines, fenced, at = text(page).splitlines(), False, 0
    while at < len(lines):
        fenced ^= lines[at].lstrip().startswith(FENCE)
        if fenced or not begins(lines, at):
            at += 1
            continue
        end = next(
            (n for n in range(at, len(lines)) if not lines[n].lstrip().startswith("|")), len(lines)
        )
        rows = tuple(line.strip() for line in lines[at + 2 : end])
        behind = paragraph(lines[end:])
        copied = COPIED.fullmatch(behind)
        source = copied[1] if copied else ""
        yield Shown(page, at + 1, lines[at].strip(), rows, mark(behind), source)
        at = end


def begins(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at].lstrip().startswith("|") and "|--" in lines[at + 1]


def paragraph(behind: Sequence[str]) -> str:
    """What the lines behind a table begin with, in one line; a comment that ends what a program writes may stand before it."""
    out = list[str]()
    for line in behind:
        if line.lstrip().startswith("<!-- /") or (not line.strip() and not out):
            continue
        if not line.strip():
            break
        out.append(line.strip())
    return " ".join(out)


def mark(words: str) -> Mark | None:
    found = MARK.fullmatch(words)
    return found and Mark(tuple(re.findall("[0-9a-f]{8}", found[1])), *found.groups()[1:])


# ---- what the commit says ----


@cache
def rows_at(commit: str) -> tuple[tuple[str, ...], ...] | None:
    """The figures of every row of every table of every page at a commit; None where its history is not here."""
    found = git("grep", "-h", "^ *|", commit, "--", "*.md")
    return None if found is None else tuple(tuple(figures(line)) for line in found.splitlines())


def git(*words: str) -> str | None:
    """What git says; None where it has no such thing, or is not there."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def figures(row: str) -> list[str]:
    return FIGURE.findall(plain(row.strip()))


def strangers(shown: Shown) -> list[str]:
    """Rows of a marked table of which no marked commit has the like. There may have been more columns then."""
    assert shown.mark
    before = [row for commit in shown.mark.commits for row in rows_at(commit) or ()]
    return [
        row
        for row in shown.rows
        if figures(row) and not any(within(figures(row), old) for old in before)
    ]


def unlike(shown: Shown) -> list[str]:
    """Figures of a table, behind its first column, that no table of the page that it repeats has."""
    there = {
        number(figure) for t in tables(shown.source) for row in t.rows for figure in figures(row)
    }
    here = [figure for row in shown.rows for figure in figures(row.split("|", 2)[2])]
    return [figure for figure in here if number(figure) not in there]


def within(few: Sequence[str], many: Sequence[str]) -> bool:
    """Whether all of the first stand in the second, in the same order."""
    rest = iter(many)
    return all(figure in rest for figure in few)


# ---- points of lab/reports/claims.md ----

CLAIMS = "lab/reports/claims.md"
CLAIMS_BEFORE = "docs/claims.md"
"""Where the page stood at the commits that it names."""
POINT = re.compile(r"^\*\*([^*]+)\*\* \(.*?(?=\n\n\*\*|\n## |\Z)", re.M | re.S)
"""From the bold name of a point, behind which its script stands, to the next point."""


def points() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of each point its text, and the commits that the last table of the page names for it."""
    *_, last = tables(CLAIMS)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in last.rows]
    named = {
        name: tuple(re.findall("[0-9a-f]{8}", at))
        for points, at in cells
        for name in points.split(", ")
    }
    return {
        point[1]: (point[0], named.get(point[1], named["all others"]))
        for point in POINT.finditer(text(CLAIMS))
    }


def unknown(words: str, commits: Sequence[str]) -> list[str] | None:
    """Decimals of a text that the page of no such commit has; None where the history is not here."""
    there = set[str]()
    for commit in commits:
        page = shown_at(commit, CLAIMS_BEFORE) or shown_at(commit, CLAIMS)
        if page is None:
            return None
        there |= set(DECIMAL.findall(page))
    return [figure for figure in DECIMAL.findall(words) if figure not in there]


@cache
def shown_at(commit: str, page: str) -> str | None:
    return git("show", f"{commit}:{page}")


# ---- which have neither ----


def unmade(
    page: str, made: Sequence[Table], left: Mapping[tuple[str, str], str]
) -> list[tuple[int, str]]:
    """Lines and heads of tables with figures that have no file, no mark, and no reason to have neither."""
    heads = {t.head for t in made if t.page == page}
    return [
        (shown.line, shown.head)
        for shown in tables(page)
        if shown.measured
        and not shown.mark
        and not shown.source
        and shown.head not in heads
        and not any(shown.head.startswith(begin) for of, begin in left if of == page)
    ]


def main() -> None:
    import results

    for page in results.pages():
        heads = {t.head for t in results.TABLES if t.page == page}
        for shown in filter(lambda table: table.measured, tables(page)):
            kind = (
                "file"
                if shown.head in heads
                else "mark"
                if shown.mark
                else "copy"
                if shown.source
                else "left out"
            )
            open_ = (shown.line, shown.head) in unmade(page, results.TABLES, results.UNMEASURED)
            print(f"{page}:{shown.line}: {'NEITHER' if open_ else kind}: {shown.head[:70]}")


if __name__ == "__main__":
    main()
