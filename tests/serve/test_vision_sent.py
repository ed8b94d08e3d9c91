"""Images within chats over HTTP, of a vision-language model: where they stand, and what is refused."""

import base64
import threading

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

import house

from polydec import Image, Sampling, generate, load
from polydec.models.formats import image_decoding
from vision_checkpoints import file_of, picture, write_llava

QUESTION = "Who followed the boat?"
ONE = file_of(picture())
OTHER = file_of(picture(9, 60, 2))


def part(data):
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def said(text):
    return {"type": "text", "text": text}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    path = tmp_path_factory.mktemp("llava") / "m"
    write_llava(path)
    return load(str(path), draft=None)


@pytest.fixture(scope="module")
def reads(seeing):
    with house.served({"seeing": lambda: seeing}) as served, served.client() as client:
        yield client


def asked(client, *parts, **fields):
    body = {
        "model": "seeing",
        "messages": [{"role": "user", "content": list(parts)}],
        "max_tokens": 8,
        "temperature": 0,
        **fields,
    }
    return client.post("/v1/chat/completions", json=body)


def test_images_within_messages_are_read_where_they_stand(reads, seeing):
    greedy = {"max_tokens": 8, "sampling": Sampling(temperature=0.0)}
    want = generate(seeing, QUESTION, source=Image(ONE), **greedy)
    got = asked(reads, part(ONE), said(QUESTION))
    assert got.status_code == 200, got.text
    assert got.json()["choices"][0]["message"]["content"] == want.text
    assert got.json()["usage"]["prompt_tokens"] == want.usage["prompt_tokens"]
    # Two of them, and the other one's text is another one's.
    both = asked(reads, part(ONE), part(OTHER), said(QUESTION)).json()
    assert both["usage"]["prompt_tokens"] > want.usage["prompt_tokens"] + 25
    texts = {
        asked(reads, part(d), said(QUESTION)).json()["choices"][0]["message"]["content"]
        for d in (ONE, OTHER)
    }
    assert len(texts) == 2


def test_images_are_decoded_where_requests_are_read_as_far_as_there_is_room(reads, monkeypatch):
    threads = list[str]()
    ask = image_decoding._WORKER.ask_worker

    def noted(request):
        threads.append(threading.current_thread().name)
        return ask(request)

    monkeypatch.setattr(image_decoding._WORKER, "ask_worker", noted)
    assert asked(reads, part(ONE), part(OTHER), said(QUESTION)).status_code == 200
    # Not the planner, for whom all other requests wait.
    assert len(threads) == 2 and all(name.startswith("read") for name in threads)
    threads.clear()
    refused = asked(reads, *[part(ONE)] * 40, said("x"))
    assert refused.status_code == 400 and "there is room for" in refused.text
    assert len(threads) < 20


def test_the_tower_runs_where_no_other_request_waits_for_it(reads, seeing, monkeypatch):
    """Each image once, also where more images are sent than are kept, and never in the planner."""
    vision = seeing.checkpoint.vision
    threads = list[str]()
    look = vision.tower.image_vectors

    def noted(tiles):
        threads.append(threading.current_thread().name)
        return look(tiles)

    monkeypatch.setattr("polydec.models.sessions.vision.KEPT", 1)
    monkeypatch.setattr(vision.tower, "image_vectors", noted)
    vision._made.clear()
    assert asked(reads, part(ONE), part(OTHER), said(QUESTION)).status_code == 200
    assert len(threads) == 2 and all(name.startswith("tower") for name in threads)
    # What has no room is refused before the tower runs.
    vision._made.clear()
    assert asked(reads, *[part(ONE)] * 40, said("x")).status_code == 400
    assert len(threads) == 2


WRONG = {
    "an address": (
        [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}],
        "addresses are not fetched",
    ),
    "no image": ([part(b"hello"), said("x")], "image is none of PNG"),
    "too many for the context": ([*[part(ONE)] * 12, said("x")], "there is room for"),
    "a place that nothing fills": ([said("<image> what?")], "prompt has 1 place for images"),
    "a place of the template's": ([{"type": "image"}], "only parts of type text or image_url"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence(reads, case):
    parts, wanted = WRONG[case]
    got = asked(reads, *parts)
    assert got.status_code == 400 and wanted in got.json()["error"]["message"], got.text
    assert "\n" not in got.json()["error"]["message"]
