"""/v1/images/generations: pictures in OpenAI's form."""

import base64

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

import polydec
from picture_models import SIDE, trained_model
from polydec.serve.body import IDLE, ONLY, RequestBody
from polydec.serve.described import request_body_fields
from polydec.serve.endpoints import ENDPOINTS
from polydec.serve.images import IMAGES as PATH
from polydec.serve.images import ImagesReader
from polydec.serve.limits import RequestLimits


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    folder = trained_model(tmp_path_factory.mktemp("pictures"))[0]
    lm = polydec.load(str(folder), draft=None, threads=1)
    with house.served({"blocks": lambda: lm}) as served, served.client() as client:
        yield lm, client


def test_pictures_are_those_of_the_library(drawing):
    lm, http = drawing
    fields = {"method": "plain", "seed": 5, "n": 2}
    said = http.post(PATH, json={"model": "blocks", "prompt": "down", **fields}).json()
    made = polydec.generate(lm, "down", **fields)
    assert [d["b64_json"] for d in said["data"]] == [c.picture.base64_text for c in made.choices]
    assert base64.b64decode(said["data"][0]["b64_json"]).startswith(b"\x89PNG")
    assert said["size"] == f"{SIDE}x{SIDE}" and said["output_format"] == "png"
    assert said["usage"]["output_tokens"] == 2 * SIDE * SIDE
    assert said["model"] == "blocks" and "polydec" not in said


def test_details_are_told_where_they_are_asked_for(drawing):
    _, http = drawing
    fields = {"prompt": "down", "polydec": True, "method": "speculative-jacobi"}
    said = http.post(PATH, json=fields).json()["polydec"]
    assert (
        said["method"]["name"] == "speculative-jacobi" and said["metrics"]["tokens_per_pass"] >= 1
    )


def test_every_field_is_described(drawing):
    body = RequestBody({"prompt": "down"}, RequestLimits())
    ImagesReader().read_request(body, drawing[0], "plain", 0)
    known = body._known - set(IDLE) - set(ONLY) | {"model"}
    assert request_body_fields(PATH).keys() == known - {"stream_options"}


@pytest.mark.parametrize(
    "fields",
    [
        {"size": "auto", "response_format": "b64_json", "quality": "auto", "user": "x"},
        {"size": f"{SIDE}x{SIDE}", "output_format": "png"},
        # What OpenAI's clients send where nobody says anything.
        {"partial_images": 0, "output_compression": 100},
    ],
)
def test_fields_that_say_what_is_done_anyway_are_taken(drawing, fields):
    _, http = drawing
    response = http.post(PATH, json={"prompt": "across", **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": "cat"}, "this model draws across, down, block, any"),
        ({"prompt": ""}, "prompt is ''"),
        ({"prompt": 3}, "prompt is 3"),
        ({}, "prompt is None"),
        ({"size": "1024x1024"}, f"pictures of this model have {SIDE}x{SIDE} pixels"),
        ({"response_format": "url"}, "response_format is 'url': it must be b64_json or left out"),
        ({"output_format": "webp"}, "output_format is 'webp'"),
        ({"partial_images": 2}, "partial_images is 2: it must be 0 or left out"),
        ({"output_compression": 50}, "output_compression is 50: it must be 100 or left out"),
        ({"stream": True}, "pictures are sent when they are complete"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"nonsense": 3}, "nonsense"),
    ],
)
def test_what_cannot_be_is_refused(drawing, fields, says):
    _, http = drawing
    usual = {} if fields in ({}, {"prompt": ""}) else {"prompt": "down"}
    response = http.post(PATH, json={**usual, **fields})
    assert response.status_code == 400 and says in response.json()["error"]["message"]


def test_an_answer_of_pictures_is_no_stream():
    answers = {path: endpoint.answers for path, endpoint in ENDPOINTS.items()}
    parts = ("take_news", "stream_chunks", "opening_events", "closing_events", "last")
    for path, answer in answers.items():
        assert [hasattr(answer, part) for part in parts] == [path != PATH] * len(parts)


def test_a_model_of_texts_has_no_pictures(http):
    response = http.post(PATH, json={"prompt": "down"})
    assert response.status_code == 400
    assert "only a model of pictures answers here" in response.json()["error"]["message"]


def test_openai_s_client_reads_them(drawing):
    openai = pytest.importorskip("openai")
    _, http = drawing
    client = openai.OpenAI(api_key="x", base_url=f"{http.base_url}/v1".replace("//v1", "/v1"))
    said = client.images.generate(model="blocks", prompt="block", n=2, response_format="b64_json")
    assert [base64.b64decode(d.b64_json)[:4] for d in said.data] == [b"\x89PNG"] * 2
