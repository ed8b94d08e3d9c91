"""What is refused is refused before it costs anything, and /health answers while requests are read."""

import asyncio
import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

import house
import httpx

from polydec.base.options import Option
from polydec.base.subprocess_worker import SubprocessWorker
from polydec.laws.constraints import guidance
from polydec.laws.constraints.span_of import SpanOf
from polydec.models.nets.memory_pool import POOL
from polydec.models.text.tokenizer import Tokenizer
from polydec.serve import arrival, connection, constrained, memory
from polydec.serve.app import create_app
from polydec.serve.errors import RefusalError
from polydec.serve.metrics import ServerMetrics
from polydec.serve.models import ServedModels
from polydec.serve.run import uvicorn_config
from polydec.serve.settings import RequestLimits
from polydec.serve.shapes import CompletionsShape


def refused(http, body, path="/v1/completions", status=400):
    text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    answer = http.post(path, content=text, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert len(error["message"]) <= 300
    return error


LONG = 4_000_000
TEXTS = ("a", "ab c ", "é ", " ")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "path, body, param",
    [
        ("/v1/completions", lambda t: {"prompt": t}, "prompt"),
        (
            "/v1/completions",
            lambda t: {"prompt": t, "echo": True, "max_tokens": 0},
            "prompt",
        ),
        (
            "/v1/completions",
            lambda t: {"prompt": "x", "negative_prompt": t, "steer": "cfg"},
            "negative_prompt",
        ),
        (
            "/v1/chat/completions",
            lambda t: {"messages": [{"role": "user", "content": t + "."}]},
            "messages",
        ),
        ("/tokenize", lambda t: {"prompt": t}, "prompt"),
    ],
    ids=["prompt", "echo", "negative", "chat", "tokenize"],
)
def test_a_long_text_is_not_encoded(http, monkeypatch, path, body, param, text):
    encoded, whole = [], Tokenizer._encoded
    monkeypatch.setattr(
        Tokenizer,
        "_encoded",
        lambda self, t, special: encoded.append(len(t)) or whole(self, t, special),
    )
    size = LONG // len(text.encode())
    if text == " " and (param == "negative_prompt" or path == "/tokenize"):
        pytest.skip("white space is no second prompt, and is few enough tokens for /tokenize")
    error = refused(http, body(text * (size // len(text))), path)
    if not (text == " " and "empty" in error["message"]):
        assert error["param"] == param and "tokens" in error["message"]
    assert sum(encoded) <= 1_200_000, "most of the text was encoded"


def test_how_much_is_beyond(lm):
    text = lm.checkpoint.text
    for sample in ("Once upon a time there was a fox. ", "a", "\n"):
        long = sample * (400_000 // len(sample))
        count = len(text.encode(long))
        assert text.exceeds_limit(long, count // 5) and not text.exceeds_limit(long, count)
        assert not text.exceeds_limit(long, count // 2 + 50)
    assert tuple(text.encode("fox é " * 2000)) == tuple(
        text.tokenizer.encode("fox é " * 2000).ids
    ), "a long text is encoded differently"


def test_too_many_entries_are_not_looked_at(http, lm, monkeypatch):
    looked, convert = [], Option.convert_value
    monkeypatch.setattr(
        Option,
        "convert_value",
        lambda self, value: looked.append((self.name, value)) or convert(self, value),
    )
    size = lm.checkpoint.lm.vocab.size
    for name, value in (
        ("logit_bias", {str(i): 1 for i in range(size + 1)}),
        ("bad_token_ids", list(range(size + 1))),
    ):
        error = refused(http, {"prompt": "x", name: value})
        assert error["param"] == name and f"{size + 1} entries" in error["message"]
        assert name not in dict(looked)


def test_too_many_prompts_are_not_decoded(http, monkeypatch):
    monkeypatch.setattr(Tokenizer, "decode", lambda *given: pytest.fail("a prompt was decoded"))
    error = refused(http, {"prompt": [[5] * 400] * 1024, "echo": True})
    assert "1024 over all prompts" in error["message"]


VALUES = {
    "lists": b'{"prompt": "x", "stop": [' + b"[]," * 200_000 + b"[]]}",
    "objects": b'{"prompt": "x", "stop": [' + b"{}," * 200_000 + b"[]]}",
    "fields": b'{"prompt": "x", "options": {'
    + b",".join(b'"%d":1' % i for i in range(200_000))
    + b"}}",
    "numbers": b'{"prompt": [' + b"1," * 1_000_000 + b"1]}",
    "texts": b'{"prompt": [' + b'"",' * 1_000_000 + b'""]}',
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_body_of_too_many_values_is_not_read(http, monkeypatch, kind):
    monkeypatch.setattr(json, "loads", lambda *a, **k: pytest.fail("the body was read"))
    answer = http.post(
        "/v1/completions", content=VALUES[kind], headers={"content-type": "application/json"}
    )
    monkeypatch.undo()
    assert (
        answer.status_code == 413
        and "the body holds more than" in answer.json()["error"]["message"]
    )


def test_what_stands_in_a_text_counts_for_nothing(http):
    text = '{"a": [1, 2, "b\\\\"], }' * 40_000  # brackets, colons, quotes and commas
    error = refused(http, {"prompt": text})
    assert error["param"] == "prompt" and "tokens" in error["message"]


@contextmanager
def waiting(monkeypatch, kind, name):
    """Every call of this method waits until the block ends."""
    entered, go, method = threading.Event(), threading.Event(), getattr(kind, name)

    def wait(*given, **more):
        entered.set()
        assert go.wait(60)
        return method(*given, **more)

    monkeypatch.setattr(kind, name, wait)
    try:
        yield entered
    finally:
        go.set()


@pytest.mark.parametrize("kind, name", [(CompletionsShape, "read_request"), (Tokenizer, "encode")])
def test_health_answers_while_a_request_is_read(server, http, monkeypatch, kind, name):
    answers = []

    def ask():
        with server.client() as client:
            answers.append(
                client.post("/v1/completions", json={"prompt": "The fox", "max_tokens": 2})
            )

    with waiting(monkeypatch, kind, name) as entered:
        asking = threading.Thread(target=ask)
        asking.start()
        assert entered.wait(60)
        assert http.get("/health", timeout=20).status_code == 200
        assert not answers
    asking.join(60)
    assert answers[0].status_code == 200


def test_a_language_is_made_once(http, lm, monkeypatch):
    """Who plans requests makes it for one after the other, and all wait for that."""
    made, language = [], SpanOf.token_language
    monkeypatch.setattr(
        SpanOf, "token_language", lambda self, *given: made.append(given) or language(self, *given)
    )
    body = {"prompt": "The fox", "max_tokens": 2, "span_of": "the quick brown fox"}
    assert http.post("/v1/completions", json=body).status_code == 200
    assert len(made) == 1
    vocab = lm.checkpoint.lm.vocab
    found = constrained.compile_field_constraint("x", lambda: SpanOf("the fox"), lm)
    assert found.token_language(vocab, vocab.eos) is found.made
    assert found.token_language(vocab, frozenset({7})).ends == {7}, (
        "other ends are another language"
    )


def test_few_wait_for_the_one_who_compiles(server, http, monkeypatch):
    """More are told to come again; what is remembered, and what has no constraint, goes on."""
    monkeypatch.setattr(constrained, "WAITING", 2)
    body = {"prompt": "The fox", "max_tokens": 2}
    known = {**body, "guided_regex": "[a-z ]+"}
    assert http.post("/v1/completions", json=known).status_code == 200
    answers = []

    def ask(pattern):
        with server.client() as client:
            answers.append(client.post("/v1/completions", json={**body, "guided_regex": pattern}))

    with waiting(monkeypatch, SubprocessWorker, "_send") as entered:
        asking = [threading.Thread(target=ask, args=(x * 3 + "+",)) for x in "abc"]
        for thread in asking:
            thread.start()
        assert entered.wait(60)
        end = time.monotonic() + 60
        while guidance._WORKER._waiting < 2 and time.monotonic() < end:
            time.sleep(0.01)
        late = http.post("/v1/completions", json={**body, "guided_regex": "d+"}, timeout=60)
        assert late.status_code == 503 and int(late.headers["retry-after"]) == constrained.SOON
        error = late.json()["error"]
        assert error["code"] == "queue_full" and error["param"] == "guided_regex"
        assert "2 wait for their turn" in error["message"]
        assert http.post("/v1/completions", json=known, timeout=60).status_code == 200
        assert not answers
    for thread in asking:
        thread.join(60)
    assert [x.status_code for x in answers] == [200] * 3
    again = http.post("/v1/completions", json={**body, "guided_regex": "d+"})
    assert again.status_code == 200, "that it was refused is not remembered"


# ---- bodies that are too large, unfinished or left ----


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n"
)


def raw(server, data, *, seconds=20.0):
    """What comes back on a connection of its own."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), seconds) as s:
        s.sendall(data)
        out = b""
        while part := s.recv(65536):
            out += part
            if b"\r\n\r\n" in out and out.rstrip().endswith(b"}"):
                break
        return out


@pytest.mark.parametrize("size", [(4 << 20) + 1, 9_000_000, 30_000_000])
def test_a_body_that_is_too_large_is_answered(http, server, size):
    error = refused(http, b"x" * size, status=413)
    assert "4194304 bytes" in error["message"]
    out = raw(server, HEAD % size + b"\r\n" + b"x" * size)
    assert out.startswith(b"HTTP/1.1 413") and b"4194304 bytes" in out


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server):
    out = raw(server, HEAD % 9_000_000 + b"Expect: 100-continue\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 413")
    out = raw(server, HEAD % 10**12 + b"\r\n")
    assert out.startswith(b"HTTP/1.1 413")


def test_who_may_not_come_in_gets_the_answer_too(server):
    head = HEAD.replace(b"localhost", b"example.org")
    out = raw(server, head % 8_000_000 + b"\r\n" + b"x" * 8_000_000)
    assert out.startswith(b"HTTP/1.1 403") and b"wrong_host" in out


def test_an_idle_connection_is_closed_by_its_client_first(lm):
    # Where the server closes it, the request that is just being sent is reset.
    settings = uvicorn_config(create_app({"tiny": lambda: lm}), 0.2)
    assert settings.timeout_keep_alive >= 2 * httpx.Limits().keepalive_expiry


@pytest.mark.parametrize("begun", [b"", b'{"prompt": "The'])
def test_an_unfinished_body_ends_cleanly(server, monkeypatch, begun):
    monkeypatch.setattr(arrival, "PATIENCE", 0.2)
    out = raw(server, HEAD % 500 + b"\r\n" + begun)
    assert out.startswith(b"HTTP/1.1 408") and b'"code":"timeout"' in out


def test_a_client_that_leaves_while_it_sends_is_no_fault(server, http, caplog):
    host, port = server.url.removeprefix("http://").split(":")
    before = http.get("/metrics").text
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with socket.create_connection((host, int(port)), 10) as s:
                s.sendall(HEAD % 500 + b'\r\n{"prompt": "The')
                time.sleep(0.05)
        end = time.monotonic() + 20
        while http.get("/metrics").text.count('status="499"') == before.count('status="499"'):
            assert time.monotonic() < end
            time.sleep(0.02)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_an_empty_name_in_text(http):
    error = refused(http, {"input": "x", "text": {"": 1}}, "/v1/responses")
    assert error["param"] == "text" and "field text. is unknown" in error["message"]


def test_where_models_lie_is_not_told():
    models = ServedModels({"big": lambda: None}, RequestLimits(), ServerMetrics())
    models.failed["big"] = "/home/somebody/model has no config.json"
    with pytest.raises(RefusalError, match="own messages say why") as told:
        models.find_worker("big")
    assert "somebody" not in str(told.value)


# ---- heads ----


@pytest.mark.parametrize("begun", [b"", b"GET /hea", HEAD % 5])
def test_an_unfinished_head_ends(server, monkeypatch, begun):
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    out = raw(server, begun, seconds=8.0)
    assert out.startswith(b"HTTP/1.1 408") and b'"code": "timeout"' in out


def test_a_head_that_comes_in_drops_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as s, suppress(OSError):
        s.settimeout(0.02)
        for _ in range(500):
            s.sendall(b"x")
            with suppress(TimeoutError):
                assert s.recv(99).startswith(b"HTTP/1.1 408")
                return
    pytest.fail("the server still reads")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: 1\r\n" * 30_000 + b"\r\n",
        b"\x16\x03\x01 is no HTTP\r\n\r\n",
    ],
    ids=["long", "without end", "many lines", "no HTTP"],
)
def test_what_is_no_head_is_told_so_in_the_usual_form(server, head, caplog):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 20) as s:
        out = b""
        with suppress(OSError):
            s.sendall(head)
        with suppress(OSError):
            while part := s.recv(65536):
                out += part
    if out:  # else what is still on its way took the answer with it
        error = json.loads(out.partition(b"\r\n\r\n")[2])["error"]
        assert out.startswith(b"HTTP/1.1 400") and "HTTP/1.1" in error["message"]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("chunked, most", [(True, connection.SMALL), (False, connection.PART)])
def test_a_connection_is_read_in_small_parts(server, monkeypatch, chunked, most):
    """Chunks of one byte are ten thousands of events in what uvicorn reads at a time, and half a second in 32 KiB."""
    sizes, read = [], connection.BoundedConnection.data_received
    monkeypatch.setattr(
        connection.BoundedConnection,
        "data_received",
        lambda self, data: sizes.append(len(data)) or read(self, data),
    )
    body, head = b'{"prompt": "' + b"a" * 50_000 + b'"}', HEAD % 50_014
    if chunked:
        body = b"".join(b"1\r\n%c\r\n" % x for x in body) + b"0\r\n\r\n"
        head = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
    assert raw(server, head + b"\r\n" + body).startswith(b"HTTP/1.1 400")
    assert most // 2 < max(sizes) <= most


def test_a_field_named_by_half_a_character(http):
    error = refused(http, b'{"prompt": "x", "\\ud800": 1}')
    assert error["param"] == "\\ud800" and error["code"] == "unknown_field"


def test_freed_memory_is_given_back_where_requests_came(monkeypatch):
    monkeypatch.setattr(memory, "EVERY", 0.001)
    looks, given_at = [], []

    def asked():
        """Two looks before the first request, two behind it, and then one before the second one."""
        looks.append(1)
        if len(looks) == 8:
            raise InterruptedError
        return [0, 0, 1, 1, 1, 1, 2][len(looks) - 1]

    with pytest.raises(InterruptedError):
        asyncio.run(memory.giving_back(asked, lambda: given_at.append(len(looks))))
    # Once more each time: the request may have ended only after the first look.
    assert given_at == [3, 4, 7]


def test_a_server_gives_freed_memory_back(lm, monkeypatch):
    given = threading.Event()
    monkeypatch.setattr(memory, "EVERY", 0.02)
    monkeypatch.setattr(memory, "give_back", given.set)
    with house.served({"tiny": lambda: lm}) as served, served.client() as client:
        client.post("/tokenize", json={"prompt": "The fox"})
        assert given.wait(20)


def test_caches_that_nobody_takes_go_back(lm, monkeypatch):
    """Behind the last request as well, at the second look."""
    monkeypatch.setattr(memory, "EVERY", 0.02)
    with house.served({"tiny": lambda: lm}) as served, served.client() as client:
        piece = POOL.take_bytes(3 << 20)
        del piece
        assert POOL.nbytes
        client.post("/tokenize", json={"prompt": "The fox"})
        house.wait_until(lambda: not POOL.nbytes)


class Knot:
    """Something that knows itself."""

    def __init__(self):
        self.itself = self


def test_what_knows_itself_is_given_back_as_well(lm, monkeypatch):
    """Python looks for it when there are many such things, however large they are."""
    monkeypatch.setattr(memory, "EVERY", 0.02)
    gone = threading.Event()
    with house.served({"tiny": lambda: lm}) as served, served.client() as client:
        assert gc.get_freeze_count(), "what is loaded stays, and nobody looks for garbage in it"
        gc.disable()
        try:
            knot = Knot()
            weakref.finalize(knot, gone.set)
            del knot
            client.post("/tokenize", json={"prompt": "The fox"})
            assert gone.wait(20)
        finally:
            gc.enable()


def test_a_refused_request_is_forgotten_at_once(http):
    """An error and the frame that waited for it knew one another, so all messages stayed."""
    said = [{"role": "user", "content": "The old river"}] * 3001
    gc.collect()
    gc.disable()
    try:
        refused(http, {"messages": said, "max_tokens": 1}, "/v1/chat/completions")
        end = time.monotonic() + 5  # the server's threads may still be about it
        while (found := kept(3001)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not found
    finally:
        gc.enable()


def kept(count):
    """How many lists of so many messages there are, beside the test's own, whose messages are one."""
    return sum(
        type(x) is list and len(x) == count and type(x[0]) is dict and x[0] is not x[1]
        for x in gc.get_objects()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="another C library has no arenas")
def test_all_threads_share_an_arena():
    program = """
import ctypes, threading
from polydec.serve.memory import one_arena
one_arena()
c = ctypes.CDLL(None)
together = threading.Barrier(8)
def take():
    together.wait()
    for _ in range(100):
        c.malloc(10_000)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
c.malloc_stats()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "Arena 0:" not in done.stderr:
        pytest.skip("another C library")
    assert "Arena 1:" not in done.stderr
