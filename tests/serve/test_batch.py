"""`polydec batch`: rows equal `polydec generate`, bad lines are rows, and it goes on from wherever it was cut."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import polydec
from polydec.cli.main import main
from polydec.serve import batch as rows
from polydec.serve.json_text import json_line

CHAT = [{"role": "user", "content": "Tell me of a fox."}]


def request(name, body, url="/v1/completions", **more):
    return {"custom_id": name, "method": "POST", "url": url, "body": body, **more}


GOOD = [
    request(
        "chat",
        {"model": "zoo:tiny", "messages": CHAT, "max_tokens": 12, "temperature": 0},
        "/v1/chat/completions",
    ),
    {"prompt": "Why is the sky blue?"},
    {"turns": ["The old river", "and"]},
    {"prompt": CHAT},
    {"prompt": [5, 9, 300]},
    request(
        "many",
        {
            "prompt": ["The", "A"],
            "n": 2,
            "temperature": 0.8,
            "seed": 3,
            "logprobs": 1,
            "max_tokens": 6,
        },
    ),
    request("none", {"prompt": "The fox"}),
]
BAD = [
    ('{"prompt":', "error", "JSON"),
    ('{"nothing": 1}', "error", "none of the fields"),
    ('{"prompt": ""}', "error", "empty"),
    (request("x1", {"prompt": "x", "temprature": 1}), 400, "temperature"),
    (request("x2", {"prompt": "x", "n": 0}), 400, "n is 0"),
    (request("x3", {"prompt": "x", "model": "gpt"}), 404, "zoo:tiny"),
    (request("x4", {"prompt": "x", "stream": True}), 400, "row"),
    (request("x5", {}, "/v1/embeddings"), None, "url"),
    (request("chat", {"prompt": "x"}), None, "line 1"),
    (request("", {"prompt": "x"}), None, "custom_id"),
    (request("x6", [1]), None, "body"),
    (request("x7", {"prompt": "x"}, more=1), None, "more"),
    ({**request("x8", {}), "method": "GET"}, None, "POST"),
    (request("x9", {"prompt": "x", "min_tokens": 99}), 400, "min_tokens"),
]


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:tiny", draft=None, ngrams=None)


@pytest.fixture
def run(lm, monkeypatch, capsys):
    monkeypatch.setattr("polydec.cli.flags.RequestFlags.load", lambda flags: lm)

    def command(*args, code=0):
        monkeypatch.setattr(
            sys,
            "argv",
            ["polydec", "batch", *map(str, args), "--model", "zoo:tiny", "--method", "plain"],
        )
        with pytest.raises(SystemExit) as stop:
            main()
        err = capsys.readouterr().err
        assert stop.value.code == code and "Traceback" not in err, err
        return err

    return command


def write(path, lines):
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def read(path):
    """Rows by their lines, without what a clock wrote."""
    out = {}
    for text in path.read_text().splitlines():
        row = json.loads(text)
        assert row["line"] not in out, "a doubled row"
        row.pop("metrics", None)
        if row.get("response"):
            row["response"]["body"].pop("created", None)
        out[row["line"]] = row
    return out


def test_rows_equal_generate_and_bad_lines_are_rows(lm, run, tmp_path):
    given = write(tmp_path / "in.jsonl", [*GOOD, "", *(b[0] for b in BAD)])
    said = run(given, tmp_path / "out.jsonl")
    assert (
        f"{len(GOOD) + len(BAD)} of {len(GOOD) + len(BAD)} rows, {len(BAD)} with an error" in said
    )
    out = read(tmp_path / "out.jsonl")
    mine = polydec.generate(lm, CHAT, max_tokens=12, sampling=lm.sampling_with(temperature=0.0))
    body = out[1]["response"]["body"]
    assert (
        out[1]["custom_id"] == "chat"
        and out[1]["error"] is None
        and out[1]["response"]["status_code"] == 200
    )
    assert body["choices"][0]["message"]["content"] == mine.text
    assert body["usage"]["prompt_tokens"] == mine.usage["prompt_tokens"]
    for at, prompt in (
        (2, "Why is the sky blue?"),
        (3, "The old river"),
        (4, CHAT),
        (5, [5, 9, 300]),
    ):
        answer = polydec.generate(lm, prompt).to_json()
        assert [out[at][k] for k in ("text", "token_ids", "usage")] == [
            answer[k] for k in ("text", "token_ids", "usage")
        ]
    texts = [c["text"] for c in out[6]["response"]["body"]["choices"]]
    assert texts == [
        c.text
        for p in ("The", "A")
        for c in polydec.generate(
            lm, p, raw=True, n=2, seed=3, sampling=lm.sampling_with(temperature=0.8), max_tokens=6
        ).choices
    ]
    for at, (_, status, says) in enumerate(BAD, len(GOOD) + 2):
        row = out[at]
        error = row["error"] if not isinstance(status, int) else row["response"]["body"]["error"]
        assert says in (error if status == "error" else error["message"]), row
        assert not isinstance(status, int) or row["response"]["status_code"] == status


@pytest.fixture
def whole(run, tmp_path):
    """A small input, with its rows."""
    given = write(tmp_path / "in.jsonl", [GOOD[0], "", BAD[0][0], GOOD[5], BAD[4][0], GOOD[6]])
    run(given, tmp_path / "out.jsonl")
    return given, tmp_path / "out.jsonl"


def test_it_goes_on_from_wherever_it_was_cut(run, whole):
    given, out = whole
    content, want, rng = out.read_bytes(), read(out), random.Random(3)
    first = content.index(b"\n") + 1
    for cut in (
        0,
        1,
        8,
        9,
        first - 1,
        first,
        first + 1,
        *(rng.randrange(len(content)) for _ in range(3)),
        len(content) - 1,
    ):
        out.write_bytes(content[:cut])
        run(given, out)
        assert read(out) == want
        assert out.read_bytes().startswith(content[: content.rfind(b"\n", 0, cut) + 1]), (
            "a row was written anew"
        )
    before = out.read_bytes()
    assert "0 tokens," in run(given, out) and out.read_bytes() == before


def test_what_it_refuses(run, whole, tmp_path):
    given, out = whole
    content = out.read_bytes()
    for args, says in (
        ((given, out, "--seed", "1"), "other flags"),
        ((given, out, "--json"), "--json"),
        ((given, out, "--temperature", "0.5"), "--temperature"),
        ((given, out, "--max-running", "0"), "running"),
        ((given, tmp_path), "cannot be read"),
        ((tmp_path / "none.jsonl", out), "none.jsonl"),
    ):
        assert says in run(*args, code=2)
    for foreign in (
        b"mine\n",
        b"mine",
        b'{"line": 99, "digest": "x"}\n',
        b'{"line": [1]}\n',
        content + content,
    ):
        out.write_bytes(foreign)
        run(given, out, code=2)
        assert out.read_bytes() == foreign
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "no request" in run(tmp_path / "empty.jsonl", tmp_path / "fresh.jsonl", code=2)


def test_a_text_file_holds_a_prompt_a_line(lm, run, tmp_path):
    given, out = write(tmp_path / "in.txt", ["The fox", "", "A boat"]), tmp_path / "out.jsonl"
    run(given, out, "--max-tokens", "5", "--raw")
    assert {k: v["text"] for k, v in read(out).items()} == {
        at: polydec.generate(lm, p, raw=True, max_tokens=5).text
        for at, p in ((1, "The fox"), (3, "A boat"))
    }


def test_fields_of_a_request_beside_a_prompt_are_said_to_be_unread(run, tmp_path):
    lines = [
        {"prompt": "The fox", "answer": "4", "raw": True},
        {"prompt": "A boat", "max_tokens": 3, "temperature": 0.9},
        {"prompt": "A hill", "seed": 3},
    ]
    said = run(write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", "--max-tokens", "2")
    assert "line 2 gives max_tokens, temperature beside a prompt" in said
    assert "line 1" not in said and "line 3" not in said
    plain = write(tmp_path / "plain.jsonl", lines[:1])
    assert "beside a prompt" not in run(plain, tmp_path / "more.jsonl", "--max-tokens", "2")
    text = write(tmp_path / "in.txt", ['see {"max_tokens": 3}'])
    assert "beside a prompt" not in run(text, tmp_path / "text.jsonl", "--max-tokens", "2")


def test_an_answer_that_fails_is_a_row(lm):
    batch = rows.BatchRunner(
        lm,
        "tiny",
        method="plain",
        seed=0,
        own=lambda line: polydec.Ask(line.text, max_tokens=3),
        running=2,
    )
    forward, out, tally = lm.checkpoint.lm.network.forward, [], rows.BatchProgress()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(lm.checkpoint.lm.network),
            "forward",
            lambda self, *a, **k: (
                (_ for _ in ()).throw(RuntimeError("a bug")) if not out else forward(*a, **k)
            ),
        )
        batch.answer_lines(
            rows.lines_of("The fox\nA boat\nThe river\nThe house\nThe king", ""),
            [],
            out.append,
            tally,
        )
    assert sorted(row["line"] for row in out) == [1, 2, 3, 4, 5] and tally.wrong >= 1
    assert all(("error" in row) != ("text" in row) for row in out)


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path):
    given = write(tmp_path / "in.jsonl", [{"prompt": f"Tell me of {i} foxes."} for i in range(60)])
    command = [
        sys.executable,
        "-m",
        "polydec",
        "batch",
        str(given),
        "--model",
        "zoo:tiny",
        "--method",
        "plain",
        "--max-running",
        "4",
        "--max-tokens",
        "64",
        "--ignore-eos",
        "--temperature",
        "0.9",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, str(tmp_path / "want.jsonl")], env=env, check=True, capture_output=True
    )
    out, kills = tmp_path / "out.jsonl", 0
    for goal in (1, 15, 40):
        process = subprocess.Popen([*command, str(out)], env=env, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (
            out.exists() and out.read_bytes().count(b"\n") >= goal
        ):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills
    subprocess.run([*command, str(out)], env=env, check=True, capture_output=True)
    assert read(out) == read(tmp_path / "want.jsonl")


def _chain(rules):
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(rules)) + f'r{rules}: "a"'


POISON = [
    {"guided_json": {"const": -(2**63)}},
    {"guided_grammar": _chain(3000)},
    {"guided_json": {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}},
    {"guided_regex": "(" * 3000},
    {"guided_json": {"properties": {"k": 5}, "required": [[-1]]}},
    {"guided_grammar": _chain(10_000).replace("r", "R").replace("staRt", "start")},
    {"guided_choice": ["\ud800"]},
    {"guided_grammar": 'start: "a" <[10]>'},
    {"structured_outputs": {"json": {"enum": [1, -(2**63)]}}},
    {"guided_json": {"items": {"not": {"required": [["x"], "b"]}}, "type": "array"}},
]


@pytest.mark.parametrize("good, bad", [(18, 10), pytest.param(180, 20, marks=pytest.mark.slow)])
def test_poisonous_lines_cost_a_row_each(run, tmp_path, good, bad):
    """Of constraints that would bring the process down that compiles them."""
    lines = [request(f"g{i}", {"prompt": f"The {i}", "max_tokens": 2}) for i in range(good)]
    for i in range(bad):
        poison = {"prompt": "The", "max_tokens": 2, **POISON[i % len(POISON)]}
        lines.insert((i * len(lines)) // bad, request(f"b{i}", poison))
    given = write(tmp_path / "in.jsonl", lines)
    assert f"{good + bad} of {good + bad} rows, {bad} with" in run(given, tmp_path / "out.jsonl")
    rows_of = {row["custom_id"]: row["response"] for row in read(tmp_path / "out.jsonl").values()}
    assert {rows_of[f"g{i}"]["status_code"] for i in range(good)} == {200}
    for i in range(bad):
        error = rows_of[f"b{i}"]["body"]["error"]
        assert rows_of[f"b{i}"]["status_code"] == 400 and "\n" not in error["message"]
        assert error["param"] in POISON[i % len(POISON)]


NO_NUMBERS = {
    "nan": ('"temperature": NaN', "NaN is no number"),
    "large": ('"temperature": 1e999', "larger than any number"),
    "minus": ('"logit_bias": {"5": -Infinity}', "no number of JSON"),
    "whole": (f'"temperature": {"9" * 400}', "temperature is 9"),
    "seed": (f'"seed": {"9" * 400}', "seed is 9"),
    "twice": ('"max_tokens": 2, "max_tokens": 3', "field 'max_tokens' is given twice"),
    "inside": ('"options": {"depth": 1, "depth": 2}', "field 'depth' is given twice"),
    "half": ('"stop": ["\\ud800"]', "stop holds half a character"),
    "name": ('"\\udfff": 1', "is unknown"),
}


def test_a_bad_body_is_one_row_here_as_on_a_server(run, tmp_path):
    head = '"method": "POST", "url": "/v1/completions", "body": {"prompt": "x", '
    lines = [
        f'{{"custom_id": "{name}", {head}{field}}}}}' for name, (field, _) in NO_NUMBERS.items()
    ]
    lines += ['{"custom_id": "a", "custom_id": "b", "url": 1}', f'{{"url": {"9" * 5000}}}', "[1]"]
    given = write(tmp_path / "in.jsonl", [*lines, GOOD[6]])
    for _ in range(2):  # it goes on from its own output
        said = run(given, tmp_path / "out.jsonl")
        assert f"{len(lines) + 1} of {len(lines) + 1} rows" in said
    out = read(tmp_path / "out.jsonl")
    for at, (name, (_, says)) in enumerate(NO_NUMBERS.items(), 1):
        assert out[at]["custom_id"] == name and out[at]["response"]["status_code"] == 400
        assert says in out[at]["response"]["body"]["error"]["message"]
    assert out[len(lines) + 1]["response"]["status_code"] == 200


def test_what_stands_around_a_body_is_read_once(lm, monkeypatch):
    """However often a line is asked whether it is a request, and of what name."""
    given = [GOOD[0], GOOD[5], {"prompt": "The fox", "seed": 3}, GOOD[0]]
    lines = rows.lines_of("\n".join([*map(json.dumps, given), "The boat"]), "")
    parsed = list[str]()
    parse = rows.parse_object

    def counted_parse(text, what):
        parsed.append(text)
        return parse(text, what)

    monkeypatch.setattr(rows, "parse_object", counted_parse)
    assert [line.is_request for line in lines] == [True, True, False, True, False]
    assert rows.custom_id_lines(lines) == {"chat": 1, "many": 2}
    assert set(lines[2].envelope_fields) == {"prompt", "seed"} and lines[4].envelope_fields == {}
    assert lines[0].envelope_fields["body"] == {}, "a body is not held"
    out, tally = list[dict](), rows.BatchProgress(rows=5)
    ask = polydec.Ask("The fox", max_tokens=2)
    batch = rows.BatchRunner(lm, "zoo:tiny", method="plain", seed=0, own=lambda line: ask)
    batch.answer_lines(lines, [], out.append, tally)
    said = {row["line"]: row for row in out}
    assert "line 1 has it already" in said[4]["error"]["message"]
    assert parsed == [line.text for line in lines]


def test_what_nobody_expected_is_one_line_s_error(lm, monkeypatch):
    lines = rows.lines_of("\n".join(json.dumps(x) for x in (GOOD[1], GOOD[6], GOOD[5])), "")
    for broken in ("read_object", "apply_request_limits", "own", "whole"):
        out, tally = list[dict](), rows.BatchProgress(rows=3)
        with monkeypatch.context() as patch:

            def fail(*args, **more):
                raise OverflowError("of a kind that nobody thought of")

            if broken == "whole":
                patch.setattr("polydec.serve.reply.CompletionsAnswer.complete_response", fail)
            elif broken != "own":
                patch.setattr(f"polydec.serve.batch.{broken}", fail)
            own = fail if broken == "own" else lambda line: polydec.Ask("The fox", max_tokens=2)
            batch = rows.BatchRunner(lm, "zoo:tiny", method="plain", seed=0, own=own)
            batch.answer_lines(lines, [], out.append, tally)
        assert sorted(row["line"] for row in out) == [1, 2, 3]
        failed = [row for row in out if "failed inside the engine" in json_line(row)]
        assert len(failed) == tally.wrong == (1 if broken == "own" else 2)
        assert not batch.engine._running and not batch.engine._waiting
