"""Masks of an image over HTTP: fields of a choice, and in a stream a chunk behind the text."""

import base64
import io
import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

import house
import torch
from PIL import Image as Pictures

from polydec import Ask, Image, Sampling, generate, load
from polydec.models.learned.kinds.mask_head import MaskHead
from vision_checkpoints import file_of, picture, write_llava

QUESTION = "Who followed the boat?"
ONE = file_of(picture())


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    path = tmp_path_factory.mktemp("llava") / "m"
    write_llava(path)
    lm = load(str(path), draft=None)
    plain = Ask(QUESTION, source=Image(ONE), sampling=Sampling(temperature=0.0), max_tokens=4)
    token = generate(lm, plain).token_ids[2]
    weight_H = torch.randn(32, generator=torch.Generator().manual_seed(1))
    head = MaskHead(lm.checkpoint.lm.vocab, token, 0, 5, 5, 4, weight_H, 0.0)
    return type(lm)(lm.checkpoint, None, (head,))


@pytest.fixture(scope="module")
def reads(seeing):
    with house.served({"seeing": lambda: seeing}) as served, served.client() as client:
        yield client


def asked(client, **fields):
    url = f"data:image/png;base64,{base64.b64encode(ONE).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {
        "model": "seeing",
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 4,
        "temperature": 0,
        "method": "stamp",
        **fields,
    }
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


@pytest.fixture(scope="module")
def want(seeing):
    return generate(
        seeing,
        QUESTION,
        source=Image(ONE),
        method="stamp",
        sampling=Sampling(temperature=0.0),
        max_tokens=4,
    )


def told(want):
    return {name: want.to_json()[name] for name in ("masks", "b64_json")}


def test_a_choice_has_its_masks_and_their_picture(reads, want):
    (choice,) = asked(reads).json()["choices"]
    assert want.image_masks and choice["message"]["content"] == want.text
    assert {name: choice[name] for name in ("masks", "b64_json")} == told(want)
    shown = Pictures.open(io.BytesIO(base64.b64decode(choice["b64_json"])))
    assert shown.size == (20, 20) and shown.mode == "RGB"
    assert [len(row) for row in choice["masks"][0]["patches"]] == [5] * 5


def test_a_stream_has_them_behind_the_text(reads, want):
    lines = asked(reads, stream=True).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(c["delta"].get("content") or "" for c in choices) == want.text
    assert {name: choices[-1][name] for name in ("masks", "b64_json")} == told(want)
    assert not any("masks" in choice for choice in choices[:-1])


def test_without_a_mask_there_are_no_such_fields(reads):
    (choice,) = asked(reads, method="plain").json()["choices"]
    assert "masks" not in choice and "b64_json" not in choice
