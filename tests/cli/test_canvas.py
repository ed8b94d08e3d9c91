"""The embedded masked-diffusion model through the command line, and what is shown of its canvas."""

import json
import sys
from io import StringIO

import pytest

from polydec import Engine, load
from polydec.lab.train.tasks import SHIPPED, draw_task, is_right_task_answer


def command(monkeypatch, args):
    from polydec.cli.main import main

    monkeypatch.setattr(sys, "argv", ["polydec", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code or 0


def test_a_canvas_is_shown_as_it_fills(tmp_path, monkeypatch, capfd):
    file, page = tmp_path / "fill.jsonl", tmp_path / "fill.html"
    assert (
        command(
            monkeypatch,
            [
                "generate",
                "--model",
                "zoo:diffusion",
                "--method",
                "llada",
                "--max-tokens",
                "13",
                "--trace",
                str(file),
                "fill: 3 4 _ 6 7 _",
            ],
        )
        == 0
    )
    assert capfd.readouterr().out.strip() == "345678"
    assert command(monkeypatch, ["trace", "show", str(file)]) == 0
    lines = [x for x in capfd.readouterr().out.splitlines() if "·" in x]
    passes = [json.loads(x) for x in file.read_text().splitlines() if "Unmasked" in x]
    assert len(lines) >= 3 and [x.count("·") for x in lines] == sorted(
        (x.count("·") for x in lines), reverse=True
    )
    assert command(monkeypatch, ["trace", "show", "--watch", "--delay", "0", str(file)]) == 0
    assert "345678" in capfd.readouterr().out
    assert command(monkeypatch, ["trace", "show", "--html", str(page), str(file)]) == 0
    text = page.read_text()
    assert (
        text.count("<tr>") == len(passes)
        and "<script" not in text
        and text.count("class=n") == sum(len(p["position"]) for p in passes)
    )


def test_every_command_takes_it_by_its_own_usual_method(tmp_path, monkeypatch, capfd):
    prompts, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("fill: 3 4 _ 6 7 _\n")
    few = ["--model", "zoo:diffusion", "--max-tokens", "13"]
    assert command(monkeypatch, ["batch", *few, str(prompts), str(out)]) == 0
    row = json.loads(out.read_text())
    assert row["text"].strip() == "345678" and row["method"]["name"] == "fast-dllm"
    monkeypatch.setattr(sys, "stdin", StringIO("fill: 3 4 _ 6 7 _\n\n"))
    assert command(monkeypatch, ["chat", *few]) == 0
    assert "345678" in capfd.readouterr().out
    load("zoo:diffusion").check_method("auto")
    with pytest.raises(ValueError, match="method prompt-lookup decodes autoregressive models"):
        load("zoo:diffusion").check_method("prompt-lookup")


def test_methods_are_timed_side_by_side(tmp_path, monkeypatch, capfd):
    data = tmp_path / "in.txt"
    data.write_text("fill: 3 4 _ 6 7 _\n")
    timed = [
        "bench",
        "--model",
        "zoo:diffusion",
        "--max-tokens",
        "13",
        "--repeat",
        "1",
        "--json",
        "--data",
        str(data),
    ]
    for more, names in (
        ([], ["llada", "fast-dllm"]),
        (["--methods", "fast-dllm:threshold=0.5,llada"], ["llada", "fast-dllm threshold=0.5"]),
    ):
        assert command(monkeypatch, [*timed, *more]) == 0
        rows = json.loads(capfd.readouterr().out)["rows"]
        assert [r["method"] for r in rows] == names and rows[0]["ratio_to_plain"] == 1.0
        assert rows[1]["tokens_per_pass"] > rows[0]["tokens_per_pass"]


def test_a_trace_that_lies_is_refused(tmp_path, monkeypatch, capfd):
    event = {
        "event": "Unmasked",
        "choice": 0,
        "step": 0,
        "block": [3, 5],
        "fed": [0, 5],
        "position": [3],
        "confidence": [0.5],
        "left": 1,
        "piece": ["a"],
    }
    for wrong in (
        {"piece": []},
        {"position": ["x"]},
        {"position": [10**12]},
        {"block": [1]},
        {"confidence": [None]},
    ):
        (tmp_path / "t").write_text(json.dumps(event | wrong) + "\n" + json.dumps(event) + "\n")
        assert command(monkeypatch, ["trace", "show", str(tmp_path / "t")]) == 2
        assert "Unmasked" in capfd.readouterr().err


def test_it_does_its_tasks_and_says_different_things():
    """Without a method named; and in one pass it knows no answer whose tokens depend on each other."""
    engine = Engine(load("zoo:diffusion"))
    tasks = [(name, draw_task(name, 5, i, unseen=True)) for name in SHIPPED for i in range(10)]
    done = engine.run([engine.submit(t.question, method="auto") for _, t in tasks])
    assert {d.method["name"] for d in done} == {"fast-dllm"}
    assert (
        sum(is_right_task_answer(name, t.question, d.text) for (name, t), d in zip(tasks, done))
        >= 35
    )
    assert (
        len({d.text for (name, _), d in zip(tasks, done) if name in ("copy", "slots")}) >= 18
    )  # the others have few
    once = engine.run(
        [
            engine.submit(t.question, method="llada", options={"steps": 1})
            for n, t in tasks
            if n == "count"
        ]
    )
    assert (
        sum(
            is_right_task_answer("count", t.question, d.text)
            for (_, t), d in zip([x for x in tasks if x[0] == "count"], once)
        )
        <= 3
    )
