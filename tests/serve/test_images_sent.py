"""Images over HTTP: an image_url part is the source of a model that reads one; whatever is wrong with it is a 400 of one
sentence, and no address is fetched."""

import base64
import io
import threading

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

import house
from PIL import Image as Pictures

from polydec import Image, Sampling, generate, load
from polydec.base.subprocess_worker import WorkerBusyError
from polydec.models.formats import image_decoding
from reader_model import LETTERS, write_reader


def png(shade=90, width=32):
    to = io.BytesIO()
    picture = Pictures.new("L", (width, 8), 255)
    picture.paste(shade, (4, 1, 12, 7))
    picture.save(to, "PNG")
    return to.getvalue()


def data_url(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat(*parts, **fields):
    return {
        "messages": [{"role": "user", "content": list(parts)}],
        "max_tokens": 6,
        "temperature": 0,
        **fields,
    }


def part(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return load(str(write_reader(tmp_path_factory.mktemp("reader") / "m")), draft=None)


@pytest.fixture(scope="module")
def reads(reader, lm):
    with (
        house.served({"reader": lambda: reader, "tiny": lambda: lm}) as served,
        served.client() as client,
    ):
        yield client


def test_each_route_reads_the_image(reads, reader):
    want = generate(
        reader, "", source=Image(png()), max_tokens=6, sampling=Sampling(temperature=0.0)
    )
    sent = {
        "/v1/chat/completions": chat(part(data_url(png()))),
        "/v1/completions": {
            "source": part(data_url(png())),
            "max_tokens": 6,
            "temperature": 0,
        },
        "/v1/responses": {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": data_url(png())}],
                }
            ],
            "max_output_tokens": 6,
            "temperature": 0,
        },
    }
    for path, body in sent.items():
        got = reads.post(path, json={"model": "reader", **body})
        assert got.status_code == 200, got.text
        assert want.text in got.text


WRONG = {
    "an address": (chat(part("https://example.org/word.png")), "addresses are not fetched"),
    "no image": (chat(part(data_url(b"hello"))), "image is none of PNG"),
    "truncated": (chat(part(data_url(png()[:60]))), "image "),
    "empty": (chat(part("data:image/png;base64,")), "image is empty"),
    "no url": (chat({"type": "image_url", "image_url": {}}), "it must hold a url"),
    "two": (chat(part(data_url(png())), part(data_url(png()))), "the request holds 2 images"),
    "text": (chat({"type": "text", "text": "read"}, part(data_url(png()))), "holds text"),
    "none": ({"messages": [{"role": "user", "content": "read"}]}, "source is none: "),
    "an unknown member": (
        chat({"type": "image_url", "image_url": {"url": data_url(png()), "x": 1}}),
        "image_url.x is unknown",
    ),
    "another part": (chat({"type": "input_audio"}), "only parts of type text or image_url"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence(reads, case):
    body, said = WRONG[case]
    got = reads.post("/v1/chat/completions", json={"model": "reader", **body})
    assert got.status_code == 400 and said in got.json()["error"]["message"]
    assert "\n" not in got.json()["error"]["message"]


def test_a_model_of_text_refuses_it_by_name(reads):
    got = reads.post("/v1/chat/completions", json={"model": "tiny", **chat(part(data_url(png())))})
    assert got.status_code == 400
    assert (
        "messages[0].content[0] is an image: tiny reads text only" in got.json()["error"]["message"]
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({**part(data_url(png())), "size": 3}, "field source.size is unknown"),
        (
            {"type": "image_url", "image_url": {"url": data_url(png()), "x": 1}},
            "field source.image_url.x is unknown",
        ),
        (part("https://example.org/word.png"), "source.image_url has the url"),
    ],
)
def test_a_source_is_read_as_a_part_of_a_message_is(reads, source, said):
    got = reads.post("/v1/completions", json={"model": "reader", "source": source})
    error = got.json()["error"]
    assert got.status_code == 400 and said in error["message"] and error["param"] == "source"


def test_an_image_is_decoded_where_requests_are_read(reads, monkeypatch):
    threads = list[str]()
    ask = image_decoding._WORKER.ask_worker

    def noted(request):
        threads.append(threading.current_thread().name)
        return ask(request)

    monkeypatch.setattr(image_decoding._WORKER, "ask_worker", noted)
    bodies = (
        ("/v1/chat/completions", chat(part(data_url(png())))),
        # Two prompts of a request have one source, which is decoded once.
        (
            "/v1/completions",
            {"source": part(data_url(png())), "prompt": [*LETTERS[:2]], "max_tokens": 2},
        ),
    )
    for path, body in bodies:
        threads.clear()
        assert reads.post(path, json={"model": "reader", **body}).status_code == 200
        # Not the planner, for whom all other requests wait.
        assert len(threads) == 1 and threads[0].startswith("read")


def test_where_many_images_wait_the_client_is_told_to_come_again(reads, monkeypatch):
    def busy(request):
        raise WorkerBusyError("8 wait for their turn already: ask again soon")

    monkeypatch.setattr(image_decoding._WORKER, "ask_worker", busy)
    got = reads.post(
        "/v1/chat/completions", json={"model": "reader", **chat(part(data_url(png())))}
    )
    assert got.status_code == 503 and got.json()["error"]["code"] == "queue_full"
    assert int(got.headers["retry-after"]) >= 1
