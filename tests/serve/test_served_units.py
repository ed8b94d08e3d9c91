"""Requests over bytes to the server: what is counted, and what log-probabilities are of."""

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

PROMPT = "Once upon a time there was a little g"


def post(http, path, **fields):
    return http.post(path, json={"prompt": PROMPT, "max_tokens": 6, "temperature": 0, **fields})


def test_completions_over_bytes(http):
    got = post(http, "/v1/completions", units="bytes", logprobs=1, echo=True).json()
    assert got["choices"][0]["text"] == PROMPT + "reat m"
    assert got["usage"] == {
        "prompt_tokens": len(PROMPT) + 1,
        "completion_tokens": 6,
        "total_tokens": len(PROMPT) + 7,
        "unit": "byte",
    }
    marks = got["choices"][0]["logprobs"]
    assert "".join(marks["tokens"][1:]) == PROMPT + "reat m"  # behind the mark of a beginning
    assert marks["text_offset"] == [0, *range(len(PROMPT) + 6)]


def test_other_endpoints_name_the_unit(http):
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "units": "bytes"}
    if (got := http.post("/v1/chat/completions", json=chat)).status_code == 200:
        assert got.json()["usage"]["unit"] == "byte"
    said = {"input": "a", "max_output_tokens": 3, "units": "bytes"}
    if (got := http.post("/v1/responses", json=said)).status_code == 200:
        assert got.json()["usage"]["unit"] == "byte"
    assert "unit" not in post(http, "/v1/completions").json()["usage"]


def test_units_that_are_none(http):
    got = post(http, "/v1/completions", units="words")
    assert got.status_code == 400
    assert "units is 'words': it must be one of tokens, bytes" in got.text
