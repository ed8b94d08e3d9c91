"""What usage says of a prompt's tokens that were cached: those that were not fed again."""

import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

import polydec

TEXT = "The grey fox watched the boat by the old river, and nobody asked why. " * 3
BEGINNING = 1
"""Tokens that every text begins with."""


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("polydec.request.profile.QUICK", 0.05)

        def load():
            lm = polydec.load("zoo:tiny", draft=None)
            lm.keep_texts(4)
            return lm

        with (
            house.served({"tiny": load}, keys=("one", "two"), method="plain") as served,
            served.client(headers={"Authorization": "Bearer one"}) as client,
        ):
            yield client


def usage(http, text, path="/v1/completions", **more):
    body = {"prompt": text, "max_tokens": 3, "ignore_eos": True, "polydec": True, **more}
    answer = http.post(path, json=body, headers=more.pop("headers", None))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["usage"], told["polydec"]["requests"][0]["metrics"]["positions_fed"]


def test_what_is_told_was_not_fed(http):
    first, fed = usage(http, f"One. {TEXT}")
    assert first["prompt_tokens_details"]["cached_tokens"] <= BEGINNING
    again, less = usage(http, f"One. {TEXT}")
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert cached == again["prompt_tokens"] - 1 and fed - less == cached
    longer, _ = usage(http, f"One. {TEXT} And then.")
    part = longer["prompt_tokens_details"]["cached_tokens"]
    assert 0 < part < longer["prompt_tokens"] - 1
    other, _ = usage(http, f"Other. {TEXT}")
    assert other["prompt_tokens_details"]["cached_tokens"] <= BEGINNING
    several, _ = usage(http, [f"One. {TEXT}"] * 2)
    assert several["prompt_tokens_details"]["cached_tokens"] <= several["prompt_tokens"] - 2


def test_a_prompt_that_is_read_whole_was_fed(http):
    usage(http, f"Two. {TEXT}")
    told, _ = usage(http, f"Two. {TEXT}", prompt_logprobs=1)
    assert told["prompt_tokens_details"] == {"cached_tokens": 0}


def test_another_client_sees_nothing(http):
    usage(http, f"Three. {TEXT}")
    other = {"Authorization": "Bearer two"}
    body = {"prompt": f"Three. {TEXT}", "max_tokens": 3}
    answer = http.post("/v1/completions", json=body, headers=other).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_streams_and_responses(http):
    body = {"prompt": f"Four. {TEXT}", "max_tokens": 3, "stream": True}
    seen = []
    for _ in range(2):
        with http.stream(
            "POST", "/v1/completions", json={**body, "stream_options": {"include_usage": True}}
        ) as answer:
            events = [json.loads(x[6:]) for x in answer.iter_lines() if x.startswith("data: {")]
        seen.append(events[-1]["usage"])
    assert seen[0]["prompt_tokens_details"]["cached_tokens"] <= BEGINNING
    assert seen[1]["prompt_tokens_details"]["cached_tokens"] == seen[1]["prompt_tokens"] - 1
    asked = {"input": f"Five. {TEXT}", "max_output_tokens": 3}
    told = [http.post("/v1/responses", json=asked).json()["usage"] for _ in range(2)]
    assert told[0]["input_tokens_details"]["cached_tokens"] < told[1]["input_tokens"] - 1
    assert told[1]["input_tokens_details"]["cached_tokens"] == told[1]["input_tokens"] - 1
