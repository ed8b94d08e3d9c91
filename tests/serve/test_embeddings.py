"""/v1/embeddings: the library's vectors, in OpenAI's form, beside other requests; what cannot be is refused."""

import base64
import threading

import pytest
import torch

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

from polydec.models.learned.kinds import path_prefixes
from polydec.serve.limits import RequestLimits

TEXTS = ["The old river", "a boat", "The fox and the boat and the river"]


def vectors(response, width=None):
    assert response.status_code == 200, response.text
    rows = [torch.tensor(d["embedding"]) for d in response.json()["data"]]
    return torch.stack(rows)


def near(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0.0)


def ask(http, **fields):
    return http.post("/v1/embeddings", json=fields)


def test_vectors_are_those_of_the_library(lm, http):
    near(vectors(ask(http, input=TEXTS)), lm.embed(TEXTS))
    near(vectors(ask(http, input=TEXTS[0], pool="mean")), lm.embed(TEXTS[0], pool="mean"))
    ids = [list(lm.encode_prompt(t, raw=True)) for t in TEXTS]
    near(vectors(ask(http, input=ids, layer=2)), lm.embed(TEXTS, layer=2))
    near(vectors(ask(http, input=ids[0])), lm.embed(TEXTS[0]))
    plain = lm.embed(TEXTS, normalised=False)
    near(vectors(ask(http, input=TEXTS, normalised=False)), plain)
    near(
        vectors(ask(http, input=TEXTS, prepend_from=1, prepend_to=2)),
        lm.embed(TEXTS, prepend_from=1, prepend_to=2),
    )
    said = ask(http, input=TEXTS, user="x").json()
    assert said["object"] == "list" and said["model"] == "tiny"
    assert said["usage"]["prompt_tokens"] == sum(map(len, ids)) == said["usage"]["total_tokens"]
    assert [d["index"] for d in said["data"]] == [0, 1, 2]


def test_a_vector_may_be_packed_and_cut_short(lm, http):
    said = ask(http, input=TEXTS, encoding_format="base64").json()["data"]
    rows = [
        torch.frombuffer(bytearray(base64.b64decode(d["embedding"])), dtype=torch.float32)
        for d in said
    ]
    near(torch.stack(rows), lm.embed(TEXTS))
    cut = vectors(ask(http, input=TEXTS, dimensions=8))
    want = lm.embed(TEXTS)[:, :8]
    near(cut, want / want.norm(dim=1, keepdim=True))


def test_the_client_of_openai_gets_them(lm, server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused")
    for form in ({}, {"encoding_format": "float"}):
        said = client.embeddings.create(model="tiny", input=TEXTS, **form)
        near(torch.tensor([d.embedding for d in said.data]), lm.embed(TEXTS))


@pytest.mark.parametrize(
    "fields, param",
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [["x"]]}, None),
        ({"input": [True]}, "input"),
        ({"input": [{}]}, "input"),
        ({"input": ["x"] * 3000}, "input"),
        ({"input": ["x", ""]}, None),
        ({"input": "x " * 100_000}, None),
        ({"input": [10**9]}, None),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 10**6}, "dimensions"),
        ({"input": "x", "pool": "max"}, "pool"),
        ({"input": "x", "layer": 99}, "layer"),
        ({"input": "x", "layer": "one"}, "layer"),
        ({"input": "x", "template": "{text}{text}"}, "template"),
        ({"input": "x", "temperature": 1}, "temperature"),
        ({"input": "x", "model": "other"}, "model"),
    ],
)
def test_what_cannot_be_is_refused(http, fields, param):
    said = ask(http, **fields)
    assert said.status_code in (400, 404), said.text
    error = said.json()["error"]
    assert len(error["message"]) <= 300 and error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param, error


def test_they_are_read_beside_answers_and_within_limits(lm):
    limits = RequestLimits(running=2, waiting=0, prompt=64)
    with house.served({"tiny": lambda: lm}, limits=limits) as served, served.client() as http:
        got = []
        thread = threading.Thread(
            target=lambda: got.append(
                http.post(
                    "/v1/completions",
                    json={"prompt": "The fox", "max_tokens": 60, "ignore_eos": True, "seed": 1},
                )
            )
        )
        thread.start()
        near(vectors(ask(http, input=TEXTS)), lm.embed(TEXTS))
        thread.join()
        assert got[0].status_code == 200 and got[0].json()["usage"]["completion_tokens"] == 60
        assert ask(http, input=["The fox and the river"] * 30).status_code == 400
        worker = served.worker
        assert worker.reading == 0 and worker.answers == 0 and not worker._going


def test_vectors_of_several_paths_are_sent(lm):
    width = lm.network.embed_tokens((0,)).shape[1]
    (prefixes,) = path_prefixes.examples(lm.checkpoint.lm.vocab, width, width)
    model = type(lm)(lm.checkpoint, None, (prefixes,))
    with house.served({"tiny": lambda: model}) as served, served.client() as http:
        for how in ({}, {"path": 2}, {"join": "concat"}):
            near(vectors(ask(http, input=TEXTS, **how)), model.embed(TEXTS, **how))
        assert vectors(ask(http, input="x", join="concat", dimensions=2 * width)).shape[1] > width
        assert ask(http, input="x", dimensions=2 * width).status_code == 400
        assert ask(http, input="x", path=3).json()["error"]["param"] == "path"
