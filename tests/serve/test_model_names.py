"""No answer of a server tells where its models lie: sentences and figures have the names under which they are served."""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

import micro
import polydec
from polydec.base.errors import RequestError
from polydec.cli.serve import ServeFlags, _load, _loaders, _named, _trained
from polydec.methods.economics.costs import PassCosts
from polydec.models.sessions.checkpoint import DeferredBundle
from polydec.serve.described import request_body_fields
from polydec.serve.request_log import RequestLog

HIDDEN = "where-nobody-looks"
CHAT = [{"role": "user", "content": "x"}]
LONG = "word " * 4000


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    place = tmp_path_factory.mktemp(HIDDEN)
    target, draft = (str(micro.write(place / name, hidden=64)) for name in ("target", "small"))
    (place / "target" / "chat_template.jinja").unlink(missing_ok=True)
    config = place / "target" / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    fields.pop("chat_template", None)
    config.write_text(json.dumps(fields))

    def loader():
        return polydec.load(target, draft=draft, dtype="torch")

    def alone():
        return polydec.load(target, draft=None)

    with served({"mine": loader, "alone": alone}) as house, house.client() as client:
        yield client


REQUESTS = {
    "no template": ("/v1/chat/completions", {"messages": CHAT}),
    "no template of responses": ("/v1/responses", {"input": "x"}),
    "no template of the tokenizer": ("/tokenize", {"messages": CHAT}),
    "tools": ("/v1/chat/completions", {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    "context": ("/v1/completions", {"prompt": "x", "max_tokens": 4000}),
    "long": ("/v1/completions", {"prompt": LONG}),
    "draft": ("/v1/completions", {"prompt": "x", "max_tokens": 4000, "method": "draft-model"}),
    "source": ("/v1/completions", {"prompt": "x", "source": "x"}),
    "negative": ("/v1/completions", {"prompt": "x", "negative_prompt": LONG}),
    "needs": ("/v1/completions", {"prompt": "x", "method": "eagle"}),
    "needs two": ("/v1/completions", {"prompt": "x", "method": "medusa"}),
    "diffusion": ("/v1/completions", {"prompt": "x", "method": "fast-dllm"}),
    "edited": ("/v1/completions", {"prompt": "x", "reuse": "edited", "reuse_key": "a", "units": "bytes"}),
    "cache": ("/v1/completions", {"prompt": "x", "cache": "window"}),
    "ids": ("/v1/completions", {"prompt": [10**9]}),
    "layer": ("/v1/embeddings", {"input": "x", "layer": 99}),
    "sentence": ("/v1/embeddings", {"input": "x", "prompt": "query"}),
    "input": ("/v1/embeddings", {"input": LONG}),
    "tokens": ("/tokenize", {"prompt": LONG * 100}),
    "figures": ("/v1/completions", {"prompt": "x", "max_tokens": 3, "polydec": "steps", "method": "draft-model"}),
    "streamed": ("/v1/completions", {"prompt": "x", "max_tokens": 3, "polydec": "steps", "stream": True}),
    "unknown": ("/v1/completions", {"prompt": "x", "model": "nobody"}),
}  # fmt: skip


@pytest.mark.parametrize("model", ["mine", "alone"])
def test_no_answer_tells_where_a_model_lies(http, model):
    refused, sentences = 0, []
    for name, (path, body) in REQUESTS.items():
        answer = http.post(path, json={"model": model, **body})
        refused += answer.status_code >= 400
        assert HIDDEN not in answer.text and "/target" not in answer.text, (name, answer.text)
        assert answer.status_code < 500, (name, answer.text)
        sentences.append(answer.text)
    assert refused > 15
    said = "\n".join(sentences)
    assert f"{model} has no chat template" in said and f"the context of {model} holds" in said
    assert f"source is given: {model} reads nothing" in said
    for path in (
        *("/v1/models", "/methods", "/steerings", "/sampling", "/tokenizer_info"),
        *("/metrics", "/health"),
    ):
        answer = http.get(path, params={"model": model} if path != "/metrics" else None)
        assert answer.status_code == 200 and HIDDEN not in answer.text, path


WHOLE = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}
PICTURES = {"/v1/images/generations": {"prompt": "x"}}
"""What a model of texts refuses, whatever is asked."""
ODD = ([True], -1, 10**9, "", "x", {"x": 1}, LONG, [10**9])
"""Values of which most fields take few: each way to refuse a field is met."""
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def from_directory(tmp_path_factory):
    """A server of directories, loaded as the command does."""
    place = tmp_path_factory.mktemp(HIDDEN)
    target = str(micro.write(place / "target", hidden=64, template=REFUSING))
    small = str(micro.write(place / "small", hidden=64))
    flags = ServeFlags(model=[target, f"other={target}"], draft=small, dtype="torch")
    load = partial(_load, loading=flags.loading, keep=flags.keep, method="plain")
    names = _named(flags.model or [])
    path = tmp_path_factory.mktemp("log") / "requests"
    written = RequestLog(str(path), texts=True)
    with (
        served(_loaders(names, _trained([], names), load), request_log=written) as house,
        house.client() as client,
    ):
        yield house, client
        written.close_log()
    assert HIDDEN not in path.read_text("utf-8")


def test_every_route_of_a_model_from_a_directory_is_silent_about_it(from_directory):
    house, http = from_directory
    assert set(house.models.loaders) == {"target", "other"}
    seen = set()
    for route in house.app.routes:
        for verb in sorted(route.methods - {"HEAD", "OPTIONS"}):
            for name in ("target", "nobody"):
                path = re.sub(r"\{\w+(:path)?\}", name, route.path)
                body = (
                    {"json": {"model": name, **(WHOLE | PICTURES)[path]}} if verb == "POST" else {}
                )
                query = {"model": name} if verb == "GET" else {}
                answer = http.request(verb, path, params=query, **body)
                assert HIDDEN not in answer.text, (verb, path, answer.text)
                assert answer.status_code < 500, (verb, path, answer.text)
                seen.add((path, answer.status_code))
    assert {path for path, status in seen if status == 200} >= WHOLE.keys()


@pytest.mark.parametrize("path", WHOLE | PICTURES)
def test_no_refusal_of_a_field_tells_where_a_model_lies(from_directory, path):
    _, http = from_directory
    statuses = Counter()
    body = (WHOLE | PICTURES)[path]
    for name in sorted({*request_body_fields(path), *body}):
        for value in ODD:
            answer = http.post(path, json={**body, name: value})
            assert HIDDEN not in answer.text, (name, answer.text)
            assert answer.status_code < 500, (name, value, answer.text)
            statuses[answer.status_code] += 1
    assert statuses[400] >= len(ODD) and statuses.keys() <= {200, 400, 404}


def test_what_a_chat_template_refuses_is_told_without_its_place(from_directory):
    _, http = from_directory
    system = [{"role": "system", "content": "x"}, *CHAT]
    for path, body in (
        ("/v1/chat/completions", {"messages": system}),
        ("/v1/responses", {"input": "x", "instructions": "x"}),
        ("/tokenize", {"messages": system}),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == 400 and "no system" in answer.text
        assert HIDDEN not in answer.text and ".jinja" not in answer.text


def test_figures_have_the_names_that_clients_know(http):
    body = {"model": "mine", "prompt": "x", "max_tokens": 6, "polydec": "steps"}
    told = http.post("/v1/completions", json={**body, "method": "draft-model"}).json()["polydec"]
    names = {m["name"] for m in told["requests"][0]["metrics"]["models"]}
    assert names == {"mine", "mine (draft)"}
    assert {p["model"] for choice in told["choices"] for p in choice["passes"]} == names
    assert json.dumps(told).count(HIDDEN) == 0


def test_a_draft_that_cannot_be_loaded_later_is_not_told_either(tmp_path):
    place = tmp_path / HIDDEN

    def make():
        raise RequestError(f"{str(place)!r} has no config.json")

    lm = replace(polydec.load("zoo:tiny", draft=None), draft=DeferredBundle(str(place), make))
    lm.__dict__["costs"] = PassCosts()
    renamed = lm.with_name("mine")
    assert (renamed.name, renamed.draft.name) == ("mine", "mine (draft)")
    with pytest.warns(UserWarning, match=HIDDEN), pytest.raises(RequestError) as told:
        renamed.draft_law()
    assert HIDDEN not in str(told.value) and "mine (draft) could not be loaded" in str(told.value)
