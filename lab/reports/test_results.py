"""What pages say was measured is what the committed result files say."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made
import pytest
import results

ROOT = made.ROOT


@pytest.mark.parametrize(
    "entry", results.TABLES, ids=lambda entry: f"{entry.page}:{entry.run.file}:{entry.head[:40]}"
)
def test_a_table_holds_the_figures_of_its_file(entry):
    assert made.faults(entry) == []


@pytest.mark.parametrize("entry", results.SENTENCES, ids=lambda entry: entry.words[:50])
def test_a_sentence_holds_the_figures_of_its_file(entry):
    assert made.untrue(entry) == []


@pytest.mark.parametrize("page", results.LEFT)
def test_no_figure_of_the_front_pages_stands_without_a_file(page):
    figures, compared = made.covered(page, results.TABLES, results.SENTENCES, results.LEFT[page])
    assert figures > 10 and compared == figures


@pytest.mark.parametrize("run", results.runs(), ids=lambda run: run.file)
def test_a_file_says_its_command_its_machine_and_its_commit(run):
    assert run.rows and run.command and run.machine
    program = run.command.split()
    # A module that is run by its name lies at the path of that name.
    named = f"{program[2].replace('.', '/')}.py" if program[1] == "-m" else program[1]
    script = ROOT / named if program[0] == "python" else None
    assert script.exists() if script else program[:2] == ["polydec", "bench"]
    commits = {row["commit"] for row in run.rows} if "commit" in run.rows[0] else {run.commit}
    assert all(re.fullmatch("[0-9a-f]{8}", commit) for commit in commits)


def test_the_list_of_files_is_up_to_date():
    page = made.text("lab/reports/README.md")
    listed = page.split(results.BEGIN)[1].split(results.END)[0].strip()
    assert listed == results.listing(), "run `python lab/reports/results.py`"
    assert all(f"({Path(run.file).name})" in listed for run in results.runs())


@pytest.mark.parametrize(
    ("shown", "value", "right"),
    [
        ("1.30", "1.30", True),
        ("1.31", "1.30", False),
        ("1.3", "1.30", True),
        ("1.24", "1.235", True),
        ("1.23", "1.235", True),
        ("1.24", "1.234", False),
        ("29,115", "29115", True),
        ("29,116", "29115", False),
        ("7.5e-06", "7.5e-06", True),
        ("7.6e-06", "7.5e-06", False),
        ("-0.5", "-0.5", True),
        ("0.5", "-0.5", False),
    ],
)
def test_a_figure_is_the_file_s_rounded(shown, value, right):
    assert made.same(shown, value) is right


@pytest.fixture
def page(monkeypatch):
    """A page and a file of its own."""
    texts = {
        "page": "## A\n\n| what | is |\n|---|--:|\n| one | **1.5** (1.2) |\n| two | 2.50 |\n\nIt is\n1.50."
    }
    monkeypatch.setattr(made, "text", texts.__getitem__)
    rows = ({"what": "one", "is": "1.52", "low": "1.2"}, {"what": "two", "is": "2.5", "low": ""})
    monkeypatch.setattr(made, "table", lambda file: rows)
    run = made.Run("file", "python x.py", "a machine", "0" * 8)

    def values(place, cells):
        row = made.pick(run, what=cells[0])
        return row and [x for x in (row["is"], row["low"]) if x]

    return texts, made.Table("page", "| what | is |", run, values), run


def test_a_wrong_figure_a_row_too_many_and_a_missing_table_are_found(page):
    texts, entry, _ = page
    assert made.faults(entry) == []
    for old, new, told in (
        ("2.50", "2.51", "['2.51'], the file has ['2.5']"),
        ("(1.2)", "", "['1.5'], the file has"),
        ("| two |", "| three |", "file has no such row"),
        ("| what |", "| which |", "no table begins with"),
    ):
        right = texts["page"]
        texts["page"] = right.replace(old, new)
        assert told in "".join(made.faults(entry))
        texts["page"] = right
    assert made.faults(replace(entry, where=lambda place: place.section == "B"))


def test_a_sentence_is_found_over_line_ends_and_a_wrong_one_is_told(page):
    _, entry, run = page
    says = made.Sentence("page", "It is {}.", run, lambda: ["1.5"])
    assert made.untrue(says) == []
    assert "1.50" in made.untrue(replace(says, values=lambda: ["1.6"]))[0]
    assert "does not say" in made.untrue(replace(says, words="It was {}."))[0]
    assert made.covered("page", (entry,), (says,), ()) == (4, 4)
    assert made.covered("page", (), (says,), ()) == (4, 1)


def test_the_command_says_how_much_of_each_page_is_compared():
    script = ROOT / "lab" / "reports" / "results.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
