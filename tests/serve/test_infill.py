"""The field `infill` of /v1/completions: gaps filled by models of both kinds, and refused by name elsewhere."""

import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

import house

import polydec
from gap_model import write_gap_model


@pytest.fixture(scope="module")
def models(lm, tmp_path_factory):
    path = write_gap_model(tmp_path_factory.mktemp("gap") / "model")
    return {"tiny": lm, "gaps": polydec.load(str(path)), "canvas": polydec.load("zoo:diffusion")}


@pytest.fixture(scope="module")
def http(models):
    with (
        house.served({name: lambda at=at: at for name, at in models.items()}) as served,
        served.client() as client,
    ):
        yield client


def asked(http, model, **more):
    body = {"model": model, "prompt": "the", "temperature": 0, "seed": 1, **more}
    return http.post("/v1/completions", json=body)


@pytest.mark.parametrize("name", ["gaps", "canvas"])
@pytest.mark.parametrize("stream", [False, True])
def test_gaps_are_filled_as_in_python(http, models, name, stream):
    text = " sea[[2]] is[[3]] blue"
    wanted = polydec.generate(models[name], "the", raw=True, infill=text, seed=1).choices[0]
    if stream:
        with http.stream(
            "POST",
            "/v1/completions",
            json={"model": name, "prompt": "the", "infill": text, "stream": True, "seed": 1},
        ) as answer:
            lines = [x[6:] for x in answer.iter_lines() if x.startswith("data: {")]
        pieces = [json.loads(x)["choices"] for x in lines]
        assert "".join(c[0]["text"] for c in pieces if c) == wanted.text
        return
    answer = asked(http, name, infill=text)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == wanted.text
    assert wanted.text.startswith(" sea") and wanted.text.endswith(" blue")
    ids = models[name].checkpoint.text.encode(" sea", special=False)
    by_ids = asked(http, name, infill=[*ids, None, None])
    assert by_ids.json()["choices"][0]["text"].startswith(" sea")


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("tiny", {"infill": "a[[2]]"}, "only a masked-diffusion or an insertion model fills gaps"),
        ("gaps", {"infill": 5}, "infill is 5: it must be a text with gaps"),
        ("gaps", {"infill": "a"}, "infill has no gap"),
        ("gaps", {"infill": "a[[2:b]]"}, "infill has a gap with a pattern: over HTTP"),
        ("canvas", {"infill": "a[[2:b]]"}, "infill has a gap with a pattern: over HTTP"),
        ("gaps", {"infill": "a[[2]]", "max_tokens": 5}, "max_tokens is given beside infill"),
        ("gaps", {"infill": "a[[2]]", "logprobs": 1}, "logprobs is given beside infill"),
        ("gaps", {"infill": "[[1]]" + "a" * 10**6}, "characters or entries: this server takes"),
        ("canvas", {"infill": "[[999999]]" * 99}, "tokens, gaps included: there is room for"),
        ("canvas", {"infill": [1, True, None]}, "infill[1] is True"),
    ],
)
def test_what_cannot_be_filled_is_refused_in_one_sentence(http, model, more, said):
    answer = asked(http, model, **more)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_chat_has_no_such_field(http):
    body = {"model": "canvas", "messages": [{"role": "user", "content": "x"}], "infill": "[[2]]"}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "infill" in answer.json()["error"]["message"]
