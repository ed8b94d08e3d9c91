"""What enters from the command line, prompt files and pipes, and what reaches a terminal or a full disk."""

import builtins
import gzip
import io
import json
import os
import random
import re
import subprocess
import sys

import pytest
import torch

import micro
from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.cli import prompts
from polydec.cli.main import main
from polydec.lab.bench import certify, measure
from polydec.models.formats import text_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield str(micro.write(tmp_path_factory.mktemp("micro")))


@pytest.fixture
def polydec(monkeypatch, capfdbinary):
    def call(*args: str, says: bytes | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        if says is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(says), encoding="utf-8"))
        with pytest.raises(SystemExit) as stop:
            main()
        out = capfdbinary.readouterr()
        return int(stop.value.code or 0), out.out.decode(), out.err.decode()

    return call


@pytest.fixture
def data(tmp_path):
    (tmp_path / "three.txt").write_text("The tall baker\nThe young teacher\nThe fox, the fox\n")
    return str(tmp_path / "three.txt")


def refused(answer):
    code, _, err = answer
    line = err.strip().split("\n")[-1]
    said = line.removeprefix("polydec: ")
    assert (
        code == 2
        and line.startswith("polydec: ")
        and "Traceback" not in err
        and error_sentence(said) == said
    ), err
    return line


LINES = [
    "[]",
    "3",
    "null",
    "{",
    "[" * 10_000,
    '{"a":' * 10_000,
    '{"turns": []}',
    '{"turns": [3]}',
    '{"turns": [{}]}',
    '{"turns": 3}',
    '{"prompt": 3}',
    '{"prompt": null}',
    '{"prompt": []}',
    '{"prompt": [[]]}',
    '{"prompt": {}}',
    '{"prompt": [1, "a"]}',
    '{"prompt": [{"role": 3, "content": "x"}]}',
    '{"prompt": [{"role": "user"}]}',
    '{"prompt": [{"role": "user", "content": []}]}',
    '{"prompt": "\\ud800"}',
    '{"text": 3}',
    '{"text": "x"}',
    '{"category": [], "prompt": "x"}',
    '{"prompt": [true]}',
    '{"prompt": [99999]}',
    '{"prompt": [-1]}',
    '{"prompt": ""}',
    '{"prompt": "\\u001b[2J' + "x" * 5000 + '", "turns": 5}',
    '{"prompt": NaN}',
    '{"\\u001b[31m": 1}',
    '{"prompt": [1e5]}',
    '{"prompt": [9' + "9" * 400 + "]}",
]


@pytest.mark.parametrize("line", LINES)
def test_lines_of_prompt_files(polydec, model, tmp_path, monkeypatch, line):
    monkeypatch.setattr(measure, "run_task", None)  # nothing is decoded
    monkeypatch.setattr(certify, "compare_greedy_texts", None)
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "The tall baker"}\n' + line)
    for command in ("bench", "verify"):
        refused(polydec(command, "--model", model, "--data", str(path), "--max-tokens", "4"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.gz", b"no gzip"),
        ("b.gz", gzip.compress(b"x" * 1000, mtime=0)[:40]),
        ("c.gz", gzip.compress(b"\xff", mtime=0)),
        ("d.txt", b"\xff\xfe"),
        ("e.jsonl", b""),
        ("f.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 40),
    ],
)
def test_prompt_files_that_cannot_be_read(polydec, model, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(polydec("bench", "--model", model, "--data", str(tmp_path / name)))
    refused(polydec("generate", "--model", model, "--prompt-file", str(tmp_path / name)))


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "LARGEST_TEXT", 1000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"x" * 1001))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        prompts.read_text(tmp_path / "a.gz")


@pytest.mark.parametrize(
    "name", ["~nosuchuser", "~nosuchuser/a", "a\0b", "x" * 5000, "/", "\x1b[31m", "/proc/self/mem"]
)
def test_names_of_files_that_are_none(polydec, model, name):
    for args in (
        ("generate", "--model", model, "--prompt-file", name),
        ("bench", "--model", model, "--data", name),
        ("trace", "show", name),
        ("generate", "hi", "--model", model, "--trace", name + "/none/x"),
    ):
        refused(polydec(*args))


def test_a_pipe_is_a_prompt(polydec, model):
    args = ("--model", model, "--max-tokens", "8", "--ignore-eos")
    said = polydec("generate", "The grey fox", *args)[1]
    assert said.strip()
    for more in ((), ("-",), ("--prompt-file", "-")):
        assert (
            polydec(
                "generate",
                *more,
                *args,
                says=b"The grey fox" + b"\n" * (more[:1] != ("--prompt-file",)),
            )[1]
            == said
        )
    for text in (b"", b"\xff\xfe"):
        assert "prompt" in refused(polydec("generate", *args, says=text))
    assert "both given" in refused(
        polydec("generate", "hi", "--prompt-file", "-", *args, says=b"The")
    )


def test_half_characters_are_refused(polydec, model):
    assert "half a character" in refused(polydec("generate", "The \udcff fox", "--model", model))
    refused(polydec("generate", "The fox", "--model", model, "--stop", "\udcff"))
    refused(polydec("chat", "--system", "\udcff", "--model", model))


def test_markup_in_prompts_is_text(polydec, model, tmp_path):
    path, odd = tmp_path / "q.jsonl", "[/INST] [/] [bold]The[/bold] \x1b[2J\x9b fox\u202e"
    path.write_text(json.dumps({"prompt": odd, "category": odd}) + "\n")
    for command in (("bench", "--methods", "plain", "--repeat", "1"), ("verify",)):
        code, out, err = polydec(
            *command, "--model", model, "--data", str(path), "--max-tokens", "4", "--raw"
        )
        assert code == 0, err
        assert "[/INST] [/] [bold]The[/bold]" in out and "\x1b[2J" not in out and "\x9b" not in out
    code, out, err = polydec(
        "demo", "--model", model, "--prompt-file", str(path), "--max-tokens", "4", "--repeat", "1"
    )
    assert code == 0 and "[/INST]" in out, err


def test_what_is_wrong_is_said_before_the_first_pass(polydec, model, monkeypatch):
    monkeypatch.setattr(measure, "run_task", None)
    monkeypatch.setattr(certify, "compare_greedy_texts", None)
    for command in ("demo", "bench", "verify"):
        for tokens in ("0", "-1", "9999", str(10**9)):
            assert "max_tokens is" in refused(
                polydec(command, "--model", model, "--max-tokens", tokens)
            )


def test_what_was_measured_is_not_lost(polydec, model, data, monkeypatch):
    real, calls = measure.run_task, []

    def fails(*args, **more):
        calls.append(args)
        if len(calls) > 4:
            raise RequestError("the draft has caught fire")
        return real(*args, **more)

    monkeypatch.setattr(measure, "run_task", fails)
    args = (
        "bench",
        "--model",
        model,
        "--methods",
        "plain,prompt-lookup",
        "--max-tokens",
        "4",
        "--repeat",
        "2",
        "--data",
        data,
    )
    answer = polydec(*args)
    assert "caught fire" in refused(answer) and answer[1].count("prompt-lookup") >= 1
    calls.clear()
    answer = polydec(*args, "--json")
    assert "caught fire" in refused(answer)
    assert {r["method"] for r in json.loads(answer[1])["rows"]} == {"plain", "prompt-lookup"}


def test_what_was_compared_is_not_lost(polydec, model, data, monkeypatch):
    real, calls = certify.compare_greedy_texts, []

    def fails(*args, **more):
        calls.append(args)
        if len(calls) > 2:
            raise RequestError("the draft has caught fire")
        return real(*args, **more)

    monkeypatch.setattr(certify, "compare_greedy_texts", fails)
    answer = polydec("verify", "--model", model, "--max-tokens", "4", "--data", data)
    assert "caught fire" in refused(answer) and "2 equal" in answer[1]
    calls.clear()
    answer = polydec("verify", "--model", model, "--max-tokens", "4", "--data", data, "--json")
    assert "caught fire" in refused(answer) and json.loads(answer[1])["counts"]["equal"] == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk here")
def test_a_full_disk_is_one_sentence_and_results_go_to_standard_error(model):
    code = "import sys; from polydec.cli.main import main; main()"
    for command in (
        ["bench", "--methods", "plain", "--limit", "1", "--repeat", "1", "--json"],
        ["methods"],
    ):
        more = (
            []
            if command == ["methods"]
            else ["--model", model, "--max-tokens", "4", "--threads", "1"]
        )
        with open("/dev/full", "w") as full:
            p = subprocess.run(
                [sys.executable, "-c", code, *command, *more],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert p.returncode == 2 and "Traceback" not in p.stderr and "No space left" in p.stderr
        assert ('"rows"' if more else "token-recycling") in p.stderr


def test_a_reader_who_leaves_is_no_error():
    code = "from polydec.cli.main import main; main()"
    p = subprocess.Popen(
        [sys.executable, "-c", code, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    p.stdout.close()
    assert p.stderr.read() == b"" and p.wait() in (0, 1)  # 1: so a library has it


@pytest.mark.skipif(os.name == "nt", reason="POSIX terminals")
def test_terminals_get_no_escapes_and_pipes_get_the_text(polydec, model, monkeypatch):
    from polydec import api
    from polydec.request import engine

    evil = "\x1b]0;owned\x07\x1b[2J\x9bm ok"
    monkeypatch.setattr(
        engine.TicketObserver,
        "final_pieces",
        lambda self: [api.Piece(evil, 1, False)] if self.edits and not self.edits.clear() else [],
    )
    args = ("generate", "The fox", "--model", model, "--max-tokens", "1", "--method", "plain")
    assert evil in polydec(*args)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = polydec(*args)[1]
    assert (
        "ok" in out
        and "\x1b]" not in out
        and "\x1b[2J" not in out
        and "\x9b" not in out
        and "\\x1b[2J" in out
    )


@pytest.fixture(scope="module")
def traced(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(
            sys,
            "argv",
            [
                "polydec",
                "generate",
                "The fox, the fox, the fox",
                "--model",
                model,
                "--max-tokens",
                "24",
                "--n",
                "2",
                "--method",
                "prompt-lookup",
                "--trace",
                str(path),
                "--ignore-eos",
                "--json",
            ],
        )
        main()
    return path


def test_a_trace_is_shown(polydec, traced):
    from polydec.core.trace import EditedEvent, from_json

    events = [from_json(json.loads(line)) for line in traced.read_text().split("\n") if line]
    code, out, _ = polydec("trace", "show", str(traced))
    assert (
        code == 0 and out.count("choice ") == 2 and "prompt-lookup (keeps the model's law)" in out
    )
    story = json.loads(polydec("trace", "show", str(traced), "--json")[1])
    for c in (0, 1):
        edits = [e for e in events if isinstance(e, EditedEvent) and e.choice == c]
        rounds = story[str(c)]["rounds"]
        assert [(r["accepted"], tuple(r["pieces"])) for r in rounds] == [
            (e.accepted, e.pieces) for e in edits
        ]
        assert story[str(c)]["tokens"] == 24 and all(
            r["accepted"] <= r["depth"] <= r["drafted"] for r in rounds
        )
        assert f"24 tokens in {len(rounds)} passes, {24 / len(rounds):.2f} tokens a pass" in out


def test_damaged_traces_are_one_sentence(polydec, traced, tmp_path):
    path, lines = tmp_path / "t.jsonl", traced.read_text().split("\n")
    wrong = (None, 3, -1, 2**70, "x", [], {}, [None], [[1, "\x1b"]], {"a": 1}, [3, 3, 3], 1.5)
    events = [json.loads(line) for line in {json.loads(x)["event"]: x for x in lines if x}.values()]
    damaged = [{**good, k: w} for good in events for k in good for w in wrong]
    lacking = [{k: v for k, v in good.items() if k != x} for good in events for x in good]
    for bad in [*random.Random(0).sample(damaged, 60), *lacking]:
        path.write_text("\n".join([json.dumps(bad), *lines]))
        answer = polydec("trace", "show", str(path))
        assert answer[0] == 0 or refused(answer)
    for text in ("", "\n", "[]\n[]", "[" * 10_000 + "\n", "\xff", '{"event": "\x1b[2J"}\n\n'):
        path.write_text(text, encoding="latin-1")
        refused(polydec("trace", "show", str(path)))
    path.write_text("\n".join(lines[:9]) + '\n{"event": "Veri')  # as an interruption leaves it
    assert polydec("trace", "show", str(path))[0] == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "~nosuchuser"),
        ("--draft", "~nosuchuser"),
        ("--with", "~nosuchuser/x"),
        ("--ngrams", "~nosuchuser"),
    ],
)
def test_homes_of_nobody(polydec, model, tmp_path, flags):
    (tmp_path / "p.jsonl").write_text('{"prompt": "The tall baker"}\n')
    for command in (("generate", "x"), ("verify", "--data", str(tmp_path / "p.jsonl"))):
        refused(polydec(*command, "--model", model, *flags))


def test_the_programs_of_built_in_prompts_are_anybodys():
    """An error of this package stood in one: whoever renames errors renames no prompts."""
    texts = [row.prompt for row in prompts.BUILT_IN if isinstance(row.prompt, str)]
    named = {name for text in texts for name in re.findall(r"\b\w+Error\b", text)}
    assert named and [name for name in named if not hasattr(builtins, name)] == []
