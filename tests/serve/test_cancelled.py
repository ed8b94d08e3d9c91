"""Whatever fails once a request has begun ends it, and half a character anywhere is one sentence."""

import json
import re
import time

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from polydec.serve import answering, app
from polydec.serve.reply import CompletionsAnswer

LONG = {"prompt": "The fox", "max_tokens": 400, "ignore_eos": True, "n": 4, "method": "plain"}


@pytest.fixture(scope="module")
def lenient(lm):
    with served({"tiny": lambda: lm}, lenient=True) as house, house.client() as http:
        yield house, http


def idle(house):
    """Nothing is under way, long before the answers would have ended by themselves."""
    worker, end = house.worker, time.monotonic() + 30
    while time.monotonic() < end:
        if not worker.live and not worker.answers and not worker._jobs and not worker._going:
            return True
        time.sleep(0.01)
    return False


def fail(*args, **more):
    raise OverflowError("of a kind that nobody thought of")


@pytest.fixture
def written(lenient):
    """Tokens that were written meanwhile, of all requests."""
    _, http = lenient

    def count():
        lines = http.get("/metrics").text.splitlines()
        return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:generation_tokens_to"))

    before = count()
    return lambda: count() - before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "where, name",
    [
        (CompletionsAnswer, "__init__"),
        (CompletionsAnswer, "take_news"),
        (CompletionsAnswer, "stream_chunks"),
        (CompletionsAnswer, "opening_events"),
        (app.secrets, "token_hex"),
        (answering, "count_delta_entries"),
        (answering, "EventStream"),
    ],
)
def test_what_fails_after_a_request_began_ends_it(
    lenient, written, monkeypatch, caplog, where, name, stream
):
    house, http = lenient
    if (name in ("take_news",) and stream) or (
        name in ("stream_chunks", "opening_events", "EventStream") and not stream
    ):
        pytest.skip("it is not used there")
    monkeypatch.setattr(where, name, fail)
    answer = http.post("/v1/completions", json={**LONG, "stream": stream, "polydec": True})
    if answer.status_code == 200:
        events = [x for x in answer.text.split("\n\n") if x]
        assert json.loads(events[-1][6:])["error"]["code"] == "internal"
    else:
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
        assert answer.headers["connection"] == "close"
    assert idle(house)
    assert written() < LONG["n"] * LONG["max_tokens"]
    monkeypatch.undo()
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_a_field_that_no_header_can_name_is_refused_before_anything_runs(lenient, written):
    house, http = lenient
    for name in (r"\ud800", r"a\udfffb", r"\udc00\ud800"):
        body = json.dumps(LONG)[:-1] + f', "{name}": 1}}'
        answer = http.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, answer.text
        assert "half a character" in answer.json()["error"]["message"]
    assert idle(house) and not written()
    for name in ("\U0001f98a", "a\nb", "x" * 5000, "", "é" * 200):
        body = {"prompt": "x", "max_tokens": 1, name: 1}
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200 and "x-polydec-ignored" in answer.headers


HALF = "x\ud800"
USER = [{"role": "user", "content": "x"}]


def tool(**fields):
    return [{"type": "function", "function": {"name": "f", **fields}}]


SCHEMA = {"type": "object", "properties": {HALF: {}}}
HALVES = {
    "prompt": ("completions", {"prompt": HALF}),
    "prompts": ("completions", {"prompt": ["x", HALF]}),
    "model": ("completions", {"prompt": "x", "model": HALF}),
    "stop": ("completions", {"prompt": "x", "stop": ["x", HALF]}),
    "method": ("completions", {"prompt": "x", "method": HALF}),
    "options": ("completions", {"prompt": "x", "options": {HALF: 1}}),
    "reuse_key": ("completions", {"prompt": "x", "reuse": "prefix", "reuse_key": HALF}),
    "cache_salt": ("completions", {"prompt": "x", "cache_salt": HALF}),
    "negative_prompt": ("completions", {"prompt": "x", "negative_prompt": HALF}),
    "logit_bias": ("completions", {"prompt": "x", "logit_bias": {HALF: 1}}),
    "user": ("completions", {"prompt": "x", "user": HALF}),
    "metadata": ("completions", {"prompt": "x", "metadata": {HALF: "x"}}),
    "guided_choice": ("completions", {"prompt": "x", "guided_choice": ["x", HALF]}),
    "guided_json": ("completions", {"prompt": "x", "guided_json": SCHEMA}),
    "content": ("chat/completions", {"messages": [{"role": "user", "content": HALF}]}),
    "role": ("chat/completions", {"messages": [{"role": HALF, "content": "x"}]}),
    "name": ("chat/completions", {"messages": [{"role": "user", "content": "x", "name": HALF}]}),
    "part": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
    ),
    "tool": ("chat/completions", {"messages": USER, "tools": tool(name=HALF)}),
    "description": ("chat/completions", {"messages": USER, "tools": tool(description=HALF)}),
    "parameters": ("chat/completions", {"messages": USER, "tools": tool(parameters=SCHEMA)}),
    "choice": (
        "chat/completions",
        {
            "messages": USER,
            "tools": tool(),
            "tool_choice": {"type": "function", "function": {"name": HALF}},
        },
    ),
    "template": ("chat/completions", {"messages": USER, "chat_template_kwargs": {"x": HALF}}),
    "input": ("responses", {"input": HALF}),
    "instructions": ("responses", {"input": "x", "instructions": HALF}),
    "text": ("embeddings", {"input": ["x", HALF]}),
}


@pytest.mark.parametrize("name", HALVES)
def test_half_a_character_is_one_sentence(lenient, written, name):
    _, http = lenient
    path, body = HALVES[name]
    answer = http.post(
        f"/v1/{path}", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] in body, answer.text
    assert error["message"].endswith("holds half a character: it must be whole Unicode text")
    assert not written()


@pytest.mark.parametrize("path", ["tokenize", "detokenize"])
def test_half_a_character_is_one_sentence_of_the_tokenizer_too(lenient, path):
    _, http = lenient
    for body in ({"prompt": HALF}, {"messages": [{"role": "user", "content": HALF}]}):
        answer = http.post(
            f"/{path}", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400 and "half a character" in answer.text


def test_half_a_character_inside_of_texts_that_hold_json(lenient):
    _, http = lenient
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "f", "arguments": json.dumps({"a": HALF})},
            }
        ],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    bodies = (
        {"messages": [*USER, called, result], "tools": tool(), "max_tokens": 2},
        {"messages": USER, "guided_json": json.dumps(SCHEMA), "max_tokens": 2},
    )
    for body in bodies:
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        assert re.search("half a character|hex escape", answer.json()["error"]["message"])


def test_names_in_the_head_are_no_reason_to_fail(lenient):
    _, http = lenient
    for path in (
        b"/v1/models/%ED%A0%80",
        b"/\xff",
        b"/v1/models/%ff",
        b"/tokenizer_info?model=%ED%A0%80",
    ):
        answer = http.get(path.decode("latin-1"))
        assert answer.status_code in (404, 400), answer.text
        assert answer.json()["error"]["message"]
    headers = {"user-agent": b"\xed\xa0\x80", "x-request-id": b"\xff"}
    answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert answer.status_code == 200
