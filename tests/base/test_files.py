"""Files that an interruption, a full disk or a second process cannot spoil."""

import json
import subprocess
import sys

import pytest

from polydec.base import files

WRITER = """
import json, sys
from pathlib import Path
from polydec.base import files
at, who = Path(sys.argv[1]), sys.argv[2]
for n in range(100):
    with files.hold_file_lock(at):
        known = json.loads(at.read_text()) if at.exists() else {}
        text = json.dumps({**known, f"{who} {n}": n})
        files.replace_file_atomically(at, lambda to: to.write_text(text))
"""


@pytest.mark.parametrize("way", ["with fcntl", "without"])
def test_two_writers_lose_nothing(tmp_path, way):
    code = (
        WRITER
        if way == "with fcntl"
        else WRITER.replace("at, who", "files.fcntl = None; at, who", 1)
    )
    at = tmp_path / "kept.json"
    both = [subprocess.Popen([sys.executable, "-c", code, str(at), who]) for who in "ab"]
    assert [p.wait(120) for p in both] == [0, 0]
    assert len(json.loads(at.read_text())) == 200


def test_a_lock_that_is_held_is_said_and_given_back(tmp_path, monkeypatch):
    for fcntl in (files.fcntl, None):
        monkeypatch.setattr(files, "fcntl", fcntl)
        with (
            files.hold_file_lock(tmp_path / "x"),
            pytest.raises(files.FileLockedError, match="another process"),
            files.hold_file_lock(tmp_path / "x", wait=0.0),
        ):
            pass
        with files.hold_file_lock(tmp_path / "x", wait=0.0):
            pass


def test_a_lock_that_a_dead_process_left_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "STALE", -1.0)
    (tmp_path / ".x.held").write_text("")
    with files.hold_file_lock(tmp_path / "x"):
        pass


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    at = tmp_path / "a"
    at.write_text("old")

    def broken(to):
        to.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.replace_file_atomically(at, broken)
    assert at.read_text() == "old" and list(tmp_path.iterdir()) == [at]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"one\n", b"one\n"),
        (b"one\ntwo", b"one\ntwo\n"),
        (b"one\nhal", b"one\n"),
        (b"hal", b""),
        (b"one\n" * 40_000 + b"hal", b"one\n" * 40_000),
        (b"one\n" + b"x" * 200_000, b"one\n"),
    ],
)
def test_the_last_line_is_ended_or_cut(tmp_path, before, after):
    at = tmp_path / "lines"
    at.write_bytes(before)
    files.end_last_line(at, lambda line: line in (b"one", b"two"))
    assert at.read_bytes() == after
