"""benchmarks/forward.py and threads.py run, and their tables hold what was measured."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "native"), str(Path(__file__).parents[2] / "benchmarks")]
import forward
import threads
from native_checkpoints import write_gguf

from polydec.models.cpu.library import available

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])


def test_a_pass_of_each_side(tmp_path, monkeypatch, capsys):
    write_gguf(tmp_path / "m.gguf", "Q8_0")
    monkeypatch.setattr(sys, "argv", ["forward.py", *f"""--shape {tmp_path / "m.gguf"} --sides step torch linears
        --compute int16 int8 --rows 1 8 65 --context 16 --rounds 1 --calls 1 --threads 1 --json""".split()])
    forward.main()
    found, sides = json.loads(capsys.readouterr().out), ["step int16", "step int8", "torch", "linears"]
    assert [*found["ms"]] == sides and all([*by] == ["1", "8", "65"] for by in found["ms"].values())
    assert all(x > 0 for by in found["ms"].values() for x in by.values()) and [*found["t8_over_t1"]] == sides
    found["ms"]["llama.cpp"] = dict.fromkeys(("1", "8", "65"), 2 * found["ms"]["step int8"]["8"])
    found["t8_over_t1"]["llama.cpp"] = 1.0
    lines = [line.split(" | ") for line in forward.table(found, markdown=True).splitlines() if line.startswith("| ")]
    assert lines[0][1:] == [*sides, "llama.cpp", "step int16 / llama.cpp", "step int8 / llama.cpp |"]
    assert lines[2][0] == "| 8" and lines[2][-1] == "0.50 |" and lines[4][0] == "| t(8) / t(1)"


def test_a_pass_with_more_threads(monkeypatch, capsys):
    options = "--model zoo:tiny --threads 1 3 --rows 1 4 --rounds 1 --calls 1 --context 8 --json"
    monkeypatch.setattr(sys, "argv", ["threads.py", *options.split()])
    threads.main()
    found = json.loads(capsys.readouterr().out)
    assert [(x["rows"], x["threads"]) for x in found["passes"]] == [(1, 1), (1, 3), (4, 1), (4, 3)]
    assert all(x["ms"] > 0 and x["cpu_ms"] > 0 for x in found["passes"])
