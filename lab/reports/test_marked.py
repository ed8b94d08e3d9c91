"""A table with figures has a result file, or says when, by what and where it was measured, and was so at that commit."""

import re
from dataclasses import replace

import made
import marked
import pytest
import results

MARKED = [t for page in results.pages() for t in marked.tables(page) if t.mark]
COPIES = [t for page in results.pages() for t in marked.tables(page) if t.source]


def named(table):
    return f"{table.page}:{table.head[:40]}"


@pytest.mark.parametrize("page", results.pages())
def test_no_table_with_figures_stands_without_a_file_or_a_mark(page):
    assert marked.unmade(page, results.TABLES, results.UNMEASURED) == []


@pytest.mark.parametrize("table", MARKED, ids=named)
def test_a_marked_table_is_that_of_its_commits(table):
    if any(marked.rows_at(commit) is None for commit in table.mark.commits):
        pytest.skip(f"the history here does not reach back to {table.mark.commits}")
    assert marked.strangers(table) == []


@pytest.mark.parametrize("table", MARKED, ids=named)
def test_a_mark_names_a_program_that_is_there(table):
    words = table.mark.command.strip("`").split()
    if words[0] != "python":
        assert words[0] in ("polydec", "make", "by")
        return
    script = words[1] if words[1] != "-m" else f"{words[2].replace('.', '/')}.py"
    assert (made.ROOT / script.strip(",")).exists()


@pytest.mark.parametrize("table", COPIES, ids=named)
def test_a_copied_table_has_figures_of_its_page(table):
    assert marked.unlike(table) == []


@pytest.mark.parametrize("page, head", results.UNMEASURED)
def test_what_is_left_out_is_there(page, head):
    assert any(t.head.startswith(head) and t.measured for t in marked.tables(page))


POINTS = marked.points()


@pytest.mark.parametrize("point", POINTS)
def test_a_point_of_the_claims_has_the_figures_of_its_commits(point):
    words, commits = POINTS[point]
    strange = marked.unknown(words, commits)
    if strange is None:
        pytest.skip(f"the history here does not reach back to {commits}")
    assert strange == []


def test_points_of_the_claims_are_told_apart(monkeypatch):
    assert len(POINTS) > 20 and POINTS["S2D"][1] == ("0c8eef4b", "3a18c389")
    assert "S2D" not in POINTS["DySpec"][0]
    monkeypatch.setattr(marked, "shown_at", lambda commit, page: "1.50 and 12.250")
    assert marked.unknown("1.50, 1.5 and 12.25", ["0" * 8]) == ["1.5", "12.25"]


# ---- can these fail? ----

PAGE = """| what | is |
|---|--:|
| one | 1.5 |

*Measured at `01234567` and `89abcdef`: `python benchmarks/serve.py
--load 4`; a machine.*

- a list

  | ms | |
  |---|---|
  | `x=1.5` | 3 |

| `size=0.5` | name |
|---|---|
| `size=0.5` | 3 layers |

```text
| what | 1.5 |
|---|---|
| no | table |
```
"""


@pytest.fixture
def page(monkeypatch):
    texts = {"page": PAGE}
    monkeypatch.setattr(marked, "text", texts.__getitem__)
    monkeypatch.setattr(
        marked, "rows_at", {"01234567": (("1.5",),), "89abcdef": (("3", "4"),)}.__getitem__
    )
    return texts


def test_tables_are_found_with_their_marks(page):
    one, listed, sizes = marked.tables("page")
    assert one.mark == marked.Mark(
        ("01234567", "89abcdef"), "`python benchmarks/serve.py --load 4`", "a machine"
    )
    assert (one.line, listed.line) == (1, 10)
    assert listed.rows == ("| `x=1.5` | 3 |",)
    assert [t.measured for t in (one, listed, sizes)] == [True, True, False]
    assert marked.unmade("page", (), {}) == [(10, "| ms | |")]
    assert marked.unmade("page", (), {("page", "| ms |"): "why"}) == []


@pytest.mark.parametrize(
    "row",
    ["| 1.5 |", "| 2e3, 1.5e-6 |", "| 12 % |", "| 3 ms |", "| 2 times |", "| 40 tokens a second |"],
)
def test_a_new_table_without_a_mark_is_told(page, row):
    page["page"] += f"\n| new | table |\n|---|---|\n{row}\n"
    assert marked.unmade("page", (), {})[-1][1] == "| new | table |"


@pytest.mark.parametrize(
    "old, new",
    [
        ("`01234567`", "`1234567`"),
        ("; a machine", ""),
        ("`python", "python"),
        ("*Measured", "Measured"),
    ],
)
def test_a_mark_that_lacks_something_is_none(page, old, new):
    page["page"] = PAGE.replace(old, new)
    assert next(marked.tables("page")).mark is None


def test_another_figure_than_that_of_the_commit_is_told(page):
    one = next(marked.tables("page"))
    assert marked.strangers(one) == []
    assert marked.strangers(replace(one, rows=("| a | 4 |", "| b | 1.5 |"))) == []
    for row in ("| one | 1.6 |", "| one | 4 | 3 |"):
        assert marked.strangers(replace(one, rows=(row,))) == [row]


def test_a_copy_with_a_figure_of_its_own_is_told(page):
    copy = marked.Shown("other", 1, "| a | b |", ("| of 7 | 1.50, 3 |",), None, "page")
    assert marked.unlike(copy) == []
    assert marked.unlike(replace(copy, rows=("| of 7 | 1.51, 3 |",))) == ["1.51"]


def test_marks_are_told_apart_from_sentences():
    assert marked.mark("*Measured at noon.*") is None
    assert not re.search(marked.COPIED, "*From `docs/a.md`.*")
