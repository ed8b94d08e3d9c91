"""Documents that are generated say what the code says."""
import runpy
import sys
from pathlib import Path

import pytest

import polydec

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("script", ["tables.py", "reference.py"])
def test_what_is_generated_is_up_to_date(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / script), run_name="__main__")
    assert stop.value.code == 0, f"README.md or a page of docs/ is old: run `python docs/{script}`"


def test_the_reference_says_something_of_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in polydec.__all__:
        assert f"\n### {name}\n" in text
        assert (getattr(polydec, name).__doc__ or "").strip().split("\n")[0][:60] in text
    assert " at 0x" not in text


def test_every_room_is_in_the_tree():
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    rooms = [p.name for p in (ROOT / "src" / "polydec").iterdir() if p.is_dir() and p.name not in ("__pycache__", "zoo")]
    assert [r for r in rooms if f"{r}/" not in text] == []


def test_long_tables_move_to_files_beside_the_page(monkeypatch, tmp_path):
    long = ("## Here\n\n### greedy, batch 1\n\n| method | all (95 %) | code | prose |\n|---|--:|--:|--:|\n"
            "| calm \\* | 1.29 (1.21 to 1.39) | 1.83 | - |\n| plain | 1.00 (one task) | 1.00 | 1.00 |\n\nEnd.\n")
    page = tmp_path / "page.md"
    page.write_text(long)
    monkeypatch.setattr(sys, "argv", ["short_tables.py", str(page)])
    for _ in range(2):                            # a short table stays as it is
        runpy.run_path(str(ROOT / "benchmarks" / "short_tables.py"), run_name="__main__")
    assert "| calm \\* | 1.29 (1.21 to 1.39) | code 1.83 | code 1.83 |" in page.read_text() and "End." in page.read_text()
    assert (tmp_path / "page-speed.csv").read_text().splitlines() == [
        "section,setting,method,approximate,all,all low,all high,code,prose",
        'Here,"greedy, batch 1",calm,yes,1.29,1.21,1.39,1.83,-', 'Here,"greedy, batch 1",plain,,1.00,,,1.00,1.00']
