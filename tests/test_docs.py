"""Documents that are generated say what the code says."""
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_table_of_methods(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / "tables.py"), run_name="__main__")
    assert stop.value.code == 0, "a table in README.md or docs/ is old: run `python docs/tables.py`"


def test_every_room_is_in_the_tree():
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    rooms = [p.name for p in (ROOT / "src" / "polydec").iterdir() if p.is_dir() and p.name not in ("__pycache__", "zoo")]
    assert [r for r in rooms if f"{r}/" not in text] == []
