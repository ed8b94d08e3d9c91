"""benchmarks/forward.py and threads.py run, and their tables hold what was measured."""

from __future__ import annotations

import json
import sys

import forward
import native_tables
import pytest
import threads
from native_checkpoints import write_gguf

from polydec.models.native.library import native_step_availability

pytestmark = pytest.mark.skipif(
    not native_step_availability()[0], reason=native_step_availability()[1]
)


def test_a_pass_of_each_side(tmp_path, monkeypatch, capsys):
    write_gguf(tmp_path / "m.gguf", "Q8_0")
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "forward.py",
            *f"""--shape {tmp_path / "m.gguf"} --sides step torch linears
        --compute int16 int8 --rows 1 8 65 --context 16 --rounds 1 --calls 1 --threads 1 --json""".split(),
        ],
    )
    forward.main()
    found, sides = (
        json.loads(capsys.readouterr().out),
        ["step int16", "step int8", "torch", "linears"],
    )
    assert [*found["ms"]] == sides and all([*by] == ["1", "8", "65"] for by in found["ms"].values())
    assert (
        all(x > 0 for by in found["ms"].values() for x in by.values())
        and [*found["t8_over_t1"]] == sides
    )
    found["ms"]["llama.cpp"] = dict.fromkeys(("1", "8", "65"), 2 * found["ms"]["step int8"]["8"])
    found["t8_over_t1"]["llama.cpp"] = 1.0
    lines = [
        line.split(" | ")
        for line in forward.table(found, markdown=True).splitlines()
        if line.startswith("| ")
    ]
    assert lines[0][1:] == [
        *sides,
        "llama.cpp",
        "step int16 / llama.cpp",
        "step int8 / llama.cpp |",
    ]
    assert lines[2][0] == "| 8" and lines[2][-1] == "0.50 |" and lines[4][0] == "| t(8) / t(1)"


def test_a_pass_with_more_threads(monkeypatch, capsys):
    options = "--model zoo:tiny --threads 1 3 --rows 1 4 --rounds 1 --calls 1 --context 8 --json"
    monkeypatch.setattr(sys, "argv", ["threads.py", *options.split()])
    threads.main()
    found = json.loads(capsys.readouterr().out)
    assert [(x["rows"], x["threads"]) for x in found["passes"]] == [(1, 1), (1, 3), (4, 1), (4, 3)]
    assert all(x["ms"] > 0 and x["cpu_ms"] > 0 for x in found["passes"])


def measured(side_ms, context=64, kernel="native AVX-512-Zen int8"):
    return {
        "shape": "/somewhere/1b-q4_k_m.gguf",
        "context": context,
        "step": [{"kernel": kernel}],
        "ms": side_ms,
        "machine": {
            "cpu": "a CPU",
            "threads": 2,
            "load_before": 0.1,
            "load_after": 0.2,
            "read_gb_per_s": 30.0,
        },
        "ratio": {
            k: {m: x / side_ms["llama.cpp"][m] for m, x in by.items()} for k, by in side_ms.items()
        },
        "t8_over_t1": {"step int8": 1.7},
    }


def test_the_page_gets_ratios_beside_their_aims(tmp_path, monkeypatch):
    (tmp_path / "native.md").write_text(
        "Before\n<!-- passes -->\nold\n<!-- /passes -->\n<!-- threads -->\n<!-- /threads -->\n"
    )
    first = measured({"step int8": {"1": 9.3, "8": 2.5}, "llama.cpp": {"1": 10.0, "8": 10.0}})
    second = measured(
        {"step int16": {"8": 7.6}, "llama.cpp": {"8": 10.0}}, kernel="native AVX2 int16"
    )
    pool = {
        "model": "m",
        "kernel": "k",
        "cores": 2,
        "load": 0.123,
        "passes": [{"rows": 1, "threads": n, "ms": 3.0 * n, "cpu_ms": 4.0} for n in (1, 16)],
    }
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (first, second, pool)))
    monkeypatch.setattr(
        sys, "argv", ["native_tables.py", str(tmp_path / "r.jsonl"), "--reports", str(tmp_path)]
    )
    for _ in range(2):  # the second time changes nothing
        native_tables.main()
        page = (tmp_path / "native.md").read_text()
        assert (
            "| 1b-q4_k_m | AVX-512 | 64 | int8 | **0.93** (0.92) |  |  | 0.25 (0.26) |  |  | **1.70** (1.60) |"
            in page
        )
        assert "| 1b-q4_k_m | AVX2 | 64 | int16 |  |  |  | **0.76** (0.75) |  |  |  |" in page
        assert (
            "| 1 | 3.0 (4.0) | 48.0 (4.0) |" in page
            and "old" not in page
            and page.startswith("Before\n")
        )
    assert len((tmp_path / "native-passes.csv").read_text().splitlines()) == 7
    assert "k,2,0.12,1,16,48.0,4.0" in (tmp_path / "native-threads.csv").read_text()


def test_the_committed_page_has_the_marks():
    page = (native_tables.REPORTS / "native.md").read_text()
    for mark in ("passes", "threads"):
        assert native_tables.between(page, mark, ["x"]) != page
