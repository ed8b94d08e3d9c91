"""The log of requests: a line each, what it holds, and that neither a full disk nor a slow one holds up an answer."""

import errno
import json
import logging
import os
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from polydec.base.errors import RequestError
from polydec.serve import request_log
from polydec.serve.request_log import REQUEST_ID, RequestLog, choose_request_id

KEY = "a-key-of-some-length"
SECRET = "a text that nobody logs"


def wait_until(holds):
    """Another thread gets there, or the test fails."""
    for _ in range(10_000):
        if holds():
            return
        time.sleep(0.002)
    raise AssertionError("it never came")


def lines_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def logged(lm, tmp_path_factory):
    """What some requests wrote: lines by id, and the answers."""
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    body = {"prompt": SECRET, "max_tokens": 3, "method": "plain", "ignore_eos": True, "n": 2}
    chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
    answers = {}
    with (
        served({"tiny": lambda: lm}, keys=(KEY,), request_log=RequestLog(str(path))) as house,
        house.client(headers={"authorization": f"Bearer {KEY}"}) as http,
    ):

        def ask(name, path, **given):
            answers[name] = http.request(
                "POST" if "json" in given else "GET",
                path,
                headers={REQUEST_ID: name, **given.pop("headers", {})},
                **given,
            )

        ask("texts", "/v1/completions", json=body)
        ask("stream", "/v1/completions", json={**body, "stream": True})
        ask("chat", "/v1/chat/completions", json=chat)
        ask("again", "/v1/completions", json=body)
        ask("vectors", "/v1/embeddings", json={"input": SECRET})
        ask("models", "/v1/models")
        ask("wrong", "/v1/completions", json={**body, "nonsense": 1})
        ask("nobody", "/v1/models", headers={"authorization": "Bearer wrong-key"})
        ask("nowhere", "/nowhere")
        answers["made"] = http.get("/health", headers={REQUEST_ID: "two words"})
    return {line["id"]: line for line in lines_of(path)}, answers, path


def test_each_request_has_a_line(logged):
    lines, answers, path = logged
    assert len(lines_of(path)) == len(lines) == len(answers)
    for name, answer in answers.items():
        line = lines[answer.headers[REQUEST_ID]]
        assert line["status"] == answer.status_code
        assert line["endpoint"] == answer.request.url.path and line["verb"] == answer.request.method
        assert line["total_ms"] >= (line["first_token_ms"] or 0) >= 0, name
        assert line["time"].endswith("Z") and "T" in line["time"]
    assert answers["texts"].status_code == 200 and answers["wrong"].status_code == 400
    text = path.read_text("utf-8")
    assert SECRET not in text and KEY not in text and "answers" not in lines["texts"]
    assert os.stat(path).st_mode & 0o077 == 0, "others may read it"


def test_a_line_counts_what_the_answer_counts(logged):
    lines, answers, _ = logged
    for name in ("texts", "chat", "again"):
        told, usage = lines[name], answers[name].json()["usage"]
        assert told["prompt_tokens"] == usage["prompt_tokens"]
        assert told["output_tokens"] == usage["completion_tokens"] > 0
        assert told["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        reasons = [choice["finish_reason"] for choice in answers[name].json()["choices"]]
        assert told["finish_reasons"] == reasons
        assert told["first_token_ms"] is not None and told["model"] == "tiny"
    assert lines["texts"]["method"] == "plain" and lines["texts"]["output_tokens"] == 6
    same = ("prompt_tokens", "output_tokens", "finish_reasons", "model", "client", "method")
    assert {k: lines["stream"][k] for k in same} == {k: lines["texts"][k] for k in same}
    vectors = lines["vectors"]
    assert vectors["prompt_tokens"] == answers["vectors"].json()["usage"]["prompt_tokens"]
    assert vectors["output_tokens"] == 0
    assert lines["models"]["prompt_tokens"] is None and lines["models"]["finish_reasons"] == []


def test_a_line_names_the_client_and_not_its_key(logged):
    lines, _, _ = logged
    named = lines["texts"]["client"]
    assert len(named) == 8 and int(named, 16) >= 0 and lines["wrong"]["client"] == named
    # Who tries keys is known by the address.
    assert lines["nobody"]["client"] == "127.0.0.1" and lines["nobody"]["status"] == 401


def test_texts_stand_in_the_log_only_where_they_are_asked_for(lm, tmp_path):
    path = tmp_path / "log"
    body = {"prompt": SECRET, "max_tokens": 3, "method": "plain", "ignore_eos": True}
    with (
        served({"tiny": lambda: lm}, request_log=RequestLog(str(path), texts=True)) as house,
        house.client() as http,
    ):
        said = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as left:
            left.read()
    whole, stream = lines_of(path)
    assert SECRET in whole["request"] and whole["answers"] == [said] == stream["answers"]
    assert whole["client"] == "127.0.0.1"


def test_a_full_disk_is_a_warning_once(tmp_path, monkeypatch, caplog):
    path, true, left = tmp_path / "log", os.write, [60]

    def write(at, text):
        if threading.current_thread().name != "request-log":
            return true(at, text)
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = min(left[0], len(text))
        left[0] -= size
        return true(at, text[:size])

    monkeypatch.setattr(request_log.os, "write", write)
    made = RequestLog(str(path))
    with caplog.at_level(logging.WARNING, "polydec.serve"):
        for at in range(9):
            made.put_line({"at": at, "filled": "x" * 40})
            wait_until(made._lines.empty)
        wait_until(lambda: made.lost >= 8)
        left[0] = 1 << 20
        made.put_line({"at": 9})
        made.close_log()
    assert len(caplog.records) == 1 and "No space left" in caplog.text
    *_, torn, last = path.read_text().splitlines()
    assert json.loads(last) == {"at": 9} and not torn.endswith("}")


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path, caplog):
    reader, writer = os.pipe()
    try:
        made = RequestLog(f"/proc/self/fd/{writer}", waiting=4)
    except RequestError:
        pytest.skip("this system has no names of open files")
    try:
        for at in range(64):
            made.put_line({"at": at, "filled": "x" * (1 << 16)})
        assert made.lost > 0 and len(caplog.records) <= 1
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_that_was_moved_away_is_made_anew(tmp_path):
    path, moved = tmp_path / "log", tmp_path / "log.1"
    made = RequestLog(str(path))
    made.put_line({"at": 0})
    wait_until(lambda: path.stat().st_size)
    path.rename(moved)
    made.put_line({"at": 1})
    made.close_log()
    assert lines_of(moved) == [{"at": 0}] and lines_of(path) == [{"at": 1}]


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(RequestError, match=r"request_log .* cannot be written"):
        RequestLog(str(tmp_path / "none" / "log"))


@pytest.mark.parametrize("sent", ["", "two words", "x" * 129, "ä", "line\nbreak"])
def test_an_id_is_made_where_none_fits(sent):
    made = choose_request_id(sent)
    assert made.startswith("req-") and made != choose_request_id(sent)
    assert choose_request_id("trace/7:a") == "trace/7:a"
