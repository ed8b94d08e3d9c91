"""benchmarks/engine_table.py: engines take turns in processes of their own, and the table is made of the record alone."""

import json
import sys

import engine_table
import pytest

SIDES = ("plain", "prompt-lookup")


def record_line(engine, task, flight, seconds, asked=128, **more):
    return {
        "machine": "a machine",
        "cores": 2,
        "threads": 2,
        "engine": engine,
        "version": f"{engine} 1.0",
        "format": "Q4_0",
        "mode": "plain",
        "flight": flight,
        "task": task,
        "asked": asked,
        "tokens": asked * flight,
        "seconds": seconds,
        "memory": 100,
        "joules": None,
        "distinct": 0.9,
        **more,
    }


def test_ratios_are_of_the_same_task_and_the_noise_is_of_both_ends():
    lines = list[dict]()
    for task, slow in ((0, 1.0), (1, 3.0)):
        lines += [
            record_line("polydec", task, 1, slow),
            record_line("other", task, 1, 2 * slow),
            record_line("polydec", task, 1, slow * 1.25),
        ]
    lines += [
        record_line("polydec", 2, 1, 0.25, asked=1),
        record_line("other", 2, 1, 0.5, asked=1),
        record_line("other", 3, 4, 1.0, error="it ended with 1"),
    ]
    ours, theirs = engine_table.table_rows(lines)
    assert (ours["over_plain"], ours["first_token_ms"]) == ("1.00", "250")
    # Of plain the mean of both ends counts: (1 + 0.8) / 2.
    assert float(theirs["over_plain"]) == pytest.approx(0.5 / 0.9, abs=0.01)
    assert theirs["first_token_ms"] == "500" and theirs["tasks"] == 2
    assert engine_table.noise_of(lines).startswith("plain after over plain before: 0.80")


def test_sides_take_turns_and_plain_decoding_stands_at_both_ends(tmp_path, monkeypatch):
    kind = engine_table.EngineKind(
        "polydec_worker.py", (), tuple(f"own:{mode}" for mode in SIDES), frozenset(SIDES)
    )
    monkeypatch.setattr(engine_table, "ENGINES", {"polydec": kind})
    monkeypatch.setattr(engine_table, "BASE", ("polydec", "own", "plain"))
    prompts = [("chat", {"ids": [3 + i, 5, 8], "text": ""}) for i in range(9)]
    monkeypatch.setattr(engine_table, "held_out_prompts", lambda *given: prompts)
    out = tmp_path / "record.jsonl"
    given = ["--envs", str(tmp_path), "--scratch", str(tmp_path / "files"), "--out", str(out)]
    sizes = ["--tokens", "8", "--tasks", "1", "--flight", "1", "2", "--each", "2"]
    monkeypatch.setattr(sys, "argv", ["engine_table.py", *given, *sizes, "--model", "zoo:tiny"])
    engine_table.main()
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    assert [(x["flight"], x["asked"]) for x in lines if x["mode"] != "plain"] == [
        (1, 1),
        (1, 8),
        (2, 8),
    ]
    assert all(x["tokens"] == x["asked"] * x["flight"] for x in lines)
    assert len(lines) == 3 * 3, "plain decoding stands at both ends of a task"


def test_a_worker_that_cannot_open_its_model_is_named(tmp_path, monkeypatch, capsys):
    kind = engine_table.EngineKind("polydec_worker.py", (), ("own:plain",))
    monkeypatch.setattr(engine_table, "ENGINES", {"polydec": kind})
    settings = {"files": {"own": str(tmp_path / "none.gguf")}, "threads": 1}
    assert engine_table.open_workers(["polydec"], settings, tmp_path) == []
    assert "polydec own, plain: " in capsys.readouterr().err
