"""The id of a request: in the header of every answer, in errors, and taken from the client where it fits."""

import json
import socket

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from polydec.serve.reply import CompletionsAnswer
from polydec.serve.request_log import REQUEST_ID
from polydec.serve.responses import ResponsesAnswer
from polydec.serve.settings import RequestLimits

KEY = "a-key-of-some-length"
BODY = {"prompt": "x", "max_tokens": 2}


@pytest.fixture(scope="module")
def house(lm):
    limits = RequestLimits(body=4096)
    with served({"tiny": lambda: lm}, keys=(KEY,), origins=("*",), limits=limits) as house:
        yield house


@pytest.fixture
def http(house):
    with house.client(headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


ASKED = {
    "answer": ("POST", "/v1/completions", {"json": BODY}),
    "stream": ("POST", "/v1/completions", {"json": {**BODY, "stream": True}}),
    "open": ("GET", "/health", {}),
    "page": ("GET", "/", {}),
    "no key": ("GET", "/v1/models", {"headers": {"authorization": ""}}),
    "no such path": ("GET", "/nowhere", {}),
    "no such method": ("GET", "/v1/completions", {}),
    "no JSON": ("POST", "/v1/completions", {"content": b"x=1"}),
    "field": ("POST", "/v1/completions", {"json": {**BODY, "nonsense": 1}}),
    "model": ("POST", "/v1/completions", {"json": {**BODY, "model": "nobody"}}),
    "large": ("POST", "/v1/completions", {"json": {**BODY, "user": "x" * 5000}}),
    "responses": ("POST", "/v1/responses", {"json": {"input": "x", "nonsense": 1}}),
    "preflight": (
        "OPTIONS",
        "/v1/completions",
        {"headers": {"origin": "https://example.org", "access-control-request-method": "POST"}},
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_answer_has_its_id(http, name):
    verb, path, given = ASKED[name]
    headers = given.get("headers", {})
    more = {k: v for k, v in given.items() if k != "headers"}
    mine = http.request(verb, path, headers={**headers, REQUEST_ID: "mine-7"}, **more)
    assert mine.headers[REQUEST_ID] == "mine-7"
    made = http.request(verb, path, headers=headers, **more)
    assert made.headers[REQUEST_ID].startswith("req-")
    if made.status_code >= 400:
        assert mine.json()["error"]["request_id"] == "mine-7"
        assert made.json()["error"]["request_id"] == made.headers[REQUEST_ID]


def test_a_page_of_another_site_may_read_it(http):
    answer = http.get("/v1/models", headers={"origin": "https://example.org"})
    assert REQUEST_ID in answer.headers["access-control-expose-headers"].lower()


@pytest.mark.parametrize(
    "path, field, writer",
    [
        ("/v1/completions", "prompt", CompletionsAnswer),
        ("/v1/responses", "input", ResponsesAnswer),
    ],
)
def test_faults_of_the_server_name_the_request(http, monkeypatch, caplog, path, field, writer):
    def broken(*_, **__):
        raise ZeroDivisionError("a fault")

    asked = {field: "x", "method": "plain"}
    for name in ("take_news", "stream_chunks"):
        monkeypatch.setattr(writer, name, broken)
    # uvicorn closes a connection on which the application failed.
    whole = http.post(path, json=asked, headers={REQUEST_ID: "mine-8", "connection": "close"})
    assert whole.status_code == 500 and whole.json()["error"]["request_id"] == "mine-8"
    assert whole.headers[REQUEST_ID] == "mine-8"
    with http.stream(
        "POST", path, json={**asked, "stream": True}, headers={REQUEST_ID: "mine-9"}
    ) as stream:
        events = [x for x in stream.read().decode().split("\n\n") if "request_id" in x]
    error = json.loads(events[0].partition("data: ")[2])
    assert error.get("error", error)["request_id"] == "mine-9"


def test_a_fault_outside_of_an_answer_names_the_request(http, house, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(house.models, "find_worker", broken)
    whole = http.post("/v1/completions", json=BODY, headers={REQUEST_ID: "mine-10"})
    assert whole.status_code == 500 and whole.json()["error"]["request_id"] == "mine-10"
    assert whole.headers[REQUEST_ID] == "mine-10" and "request mine-10 failed" in caplog.text


def test_what_is_no_request_has_an_id_too(house):
    host, port = house.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as made:
        made.sendall(b"nonsense\r\n\r\n")
        answer = b""
        while part := made.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    told = json.loads(body)["error"]["request_id"]
    assert told.startswith("req-") and f"{REQUEST_ID}: {told}".encode() in head
