"""Answers that list much: bounded before anything runs, and written outside of the event loop."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from polydec.serve import answering
from polydec.serve.json_text import LazyRows, json_line, json_pieces
from polydec.serve.settings import RequestLimits

IDS = [list(range(5, 105))] * 8
CHAT = [{"role": "user", "content": "Tell me of a fox."}]


@pytest.fixture(scope="module")
def small(lm):
    with (
        served({"tiny": lambda: lm}, limits=RequestLimits(entries=2000)) as house,
        house.client() as http,
    ):
        yield http


TOO_MUCH = {
    "prompts": ("completions", {"prompt": IDS, "prompt_logprobs": 64}, "prompt_logprobs"),
    "echo": ("completions", {"prompt": IDS, "echo": True, "logprobs": 5}, "logprobs"),
    "only echo": ("completions", {"prompt": IDS, "echo": True, "logprobs": 5, "max_tokens": 0}, "logprobs"),
    "streamed": ("completions", {"prompt": IDS, "echo": True, "logprobs": 5, "stream": True}, "logprobs"),
    "n": ("completions", {"prompt": "x", "n": 40, "logprobs": 5}, "logprobs"),
    "long": ("completions", {"prompt": "x", "max_tokens": 400, "logprobs": 5}, "logprobs"),
    "copies": ("completions", {"prompt": IDS[0], "n": 21, "prompt_logprobs": 0}, "prompt_logprobs"),
    "chat": (
        "chat/completions",
        {"messages": CHAT, "n": 20, "logprobs": True, "top_logprobs": 20, "max_tokens": 9},
        "logprobs",
    ),
    "chat prompt": ("chat/completions", {"messages": CHAT, "n": 40, "prompt_logprobs": 64}, "prompt_logprobs"),
    "response": (
        "responses",
        {
            "input": "x", "max_output_tokens": 100, "top_logprobs": 20,
            "include": ["message.output_text.logprobs"],
        },
        "top_logprobs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_a_response_lists_is_bounded_before_anything_runs(small, name):
    path, body, param = TOO_MUCH[name]
    passes = small.get("/metrics").text
    answer = small.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param, answer.text
    assert "2000 log-probabilities" in error["message"] and len(error["message"]) <= 300
    after = small.get("/metrics").text
    for line in (x for x in passes.splitlines() if "prompt_tokens_total{" in x):
        assert line in after


def test_what_is_left_out_is_as_much_as_there_is_room_for(small):
    body = {"messages": CHAT, "logprobs": True, "top_logprobs": 19, "n": 2, "ignore_eos": True}
    choices = small.post("/v1/chat/completions", json=body).json()["choices"]
    assert {len(c["logprobs"]["content"]) for c in choices} == {2000 // (2 * 20)}


@pytest.mark.parametrize("form, texts", [("float", 200), ("base64", 1000)])
def test_vectors_are_bounded(small, lm, form, texts):
    width = lm.network.embed_tokens((0,)).shape[1]
    most = {"float": 4, "base64": 16}[form] * 2000
    assert texts * width > most, "this shows nothing"
    body = {"input": ["x"] * texts, "encoding_format": form}
    answer = small.post("/v1/embeddings", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input"
    assert f"at most {most}" in answer.json()["error"]["message"]
    body = {"input": ["x"] * 8, "encoding_format": form, "dimensions": 2}
    assert len(small.post("/v1/embeddings", json=body).json()["data"]) == 8


def test_details_are_bounded_while_they_come(small, lm):
    body = {"prompt": "x", "n": 8, "max_tokens": 400, "ignore_eos": True, "polydec": True}
    answer = small.post("/v1/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "polydec"
    assert not lm.checkpoint.lm.live or small.get("/health")
    assert small.post("/v1/completions", json={**body, "polydec": False}).status_code == 200


ANSWERS = {
    "completions": {"prompt": IDS, "max_tokens": 1, "prompt_logprobs": 3},
    "chat/completions": {"messages": CHAT, "max_tokens": 3},
    "responses": {"input": "x", "max_output_tokens": 3},
    "embeddings": {"input": ["x", "y"]},
}


@pytest.mark.parametrize("path", ANSWERS)
def test_answers_are_written_by_other_threads(http, monkeypatch, path):
    names = list[str]()
    made = json_pieces

    def noted(value, **more):
        names.append(threading.current_thread().name)
        yield from made(value, **more)

    monkeypatch.setattr(answering, "json_pieces", noted)
    answer = http.post(f"/v1/{path}", json=ANSWERS[path])
    assert answer.status_code == 200 and len(names) == 1
    assert names[0].startswith("write"), names


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": IDS[0], "echo": True, "logprobs": 5, "max_tokens": 2},
        {"prompt": IDS[0], "echo": True, "logprobs": 5, "max_tokens": 2, "n": 3},
    ],
)
def test_large_chunks_of_a_stream_are_written_by_other_threads(http, monkeypatch, body):
    names = list[tuple[str, int]]()
    made = json_pieces

    def noted(value, **more):
        pieces = list(made(value, **more))
        names.append((threading.current_thread().name, sum(map(len, pieces))))
        yield from pieces

    monkeypatch.setattr(answering, "json_pieces", noted)
    whole = http.post("/v1/completions", json={**body, "seed": 1}).json()
    names.clear()
    streamed = http.post("/v1/completions", json={**body, "seed": 1, "stream": True}).text
    chunks = [json.loads(x[6:]) for x in streamed.split("\n\n") if x.startswith("data: {")]
    for at, choice in enumerate(whole["choices"]):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == at]
        marks = [c["logprobs"] for c in mine if c["logprobs"]]
        for name in choice["logprobs"]:
            assert [x for m in marks for x in m[name]] == choice["logprobs"][name]
    large = [name for name, size in names if size > 10_000]
    assert len(large) == body.get("n", 1)
    assert all(name.startswith("write") for name in large), names


def test_a_response_of_many_pieces_is_one_text(lm):
    """It is sent in pieces beyond a size, with its length in front."""
    with served({"tiny": lambda: lm}) as house, house.client() as http:
        body = {"prompt": [IDS[0]] * 40, "max_tokens": 1, "prompt_logprobs": 10}
        with ThreadPoolExecutor(2) as pool:
            long, short = pool.map(
                lambda b: http.post("/v1/completions", json=b), (body, {**body, "prompt": IDS[0]})
            )
    assert int(long.headers["content-length"]) == len(long.content) > answering.WHOLE
    choices = long.json()["choices"]
    assert len(choices) == 40
    assert all(
        c["prompt_logprobs"] == short.json()["choices"][0]["prompt_logprobs"] for c in choices
    )


VALUES = [
    {},
    [],
    None,
    'é\u2028"',
    {"a": [], "b": {}, "c": [[1, 2], [None, 1.5, "x"]], "é": {"d": [{"e": True}] * 3}},
    [None, 1, "x", {"a": 1}],
    list(range(5000)),
    {"deep": [[[[[[[[[[[[{"a": [1, {"b": 2}]}]]]]]]]]]]]]},
]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_pieces_add_up_to_what_json_writes(ascii_only):
    for value in VALUES:
        usual = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
        assert "".join(json_pieces(value, ascii_only=ascii_only)) == usual
    with pytest.raises(ValueError):
        list(json_pieces([float("nan")]))
    large = {"rows": [{"x": i} for i in range(50_000)]}
    pieces = list(json_pieces(large))
    assert len(pieces) > 5 and json.loads("".join(pieces)) == large


def test_lazy_rows_are_those_of_a_list():
    rows = LazyRows(lambda x: {"x": x}, range(3)) + LazyRows(str, (7,))
    wanted = [{"x": 0}, {"x": 1}, {"x": 2}, "7"]
    assert list(rows) == wanted and len(rows) == 4 and rows[1:] == wanted[1:]
    assert [rows[i] for i in range(-4, 4)] == wanted + wanted
    assert json.loads(json_line({"a": rows})) == {"a": wanted}
    assert not LazyRows(str, ())
