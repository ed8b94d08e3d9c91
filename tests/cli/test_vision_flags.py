"""`--image FILE` with a vision-language model: it stands before the prompt."""

import base64
import json

import pytest

from polydec import Image, Sampling, generate, load
from vision_checkpoints import file_of, picture, write_llava


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("llava") / "m"
    write_llava(path)
    return str(path)


def test_an_image_stands_before_the_prompt(polydec_command, model, tmp_path):
    path = tmp_path / "scene.png"
    path.write_bytes(file_of(picture()))
    common = ("--model", model, "--image", str(path), "--max-tokens", "6", "--json")
    more = {"max_tokens": 6, "sampling": Sampling(temperature=0.0), "source": Image(path)}
    lm = load(model, draft=None)
    asked = "Who followed the boat?"
    prompts = {
        (asked,): asked,
        (asked, "--system", "Be brief."): [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": asked},
        ],
        (): "",
    }
    for flags, prompt in prompts.items():
        code, out, err = polydec_command("generate", *flags, *common)
        assert code == 0, err
        got = json.loads(out)
        want = generate(lm, prompt, **more)
        assert got["token_ids"] == list(want.choices[0].token_ids)
        assert got["usage"]["prompt_tokens"] == want.usage["prompt_tokens"] > 25


def part(image):
    data = base64.b64encode(file_of(image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def test_several_images_stand_in_order(polydec_command, model, tmp_path):
    """Where the prompt has places, there, and else before it: as in messages with parts."""
    images = [picture(), picture(9, 60, 2)]
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, image in zip(files, images, strict=True):
        path.write_bytes(file_of(image))
    lm = load(model, draft=None)
    more = {"max_tokens": 6, "sampling": Sampling(temperature=0.0)}
    common = ("--model", model, "--max-tokens", "6", "--json")
    told = set()
    for order in ((0, 1), (1, 0)):
        flags = [flag for at in order for flag in ("--image", str(files[at]))]
        first, second = (part(images[at]) for at in order)
        said = [{"type": "text", "text": "Who followed the boat?"}]
        want = generate(lm, [{"role": "user", "content": [first, second, *said]}], **more)
        code, out, err = polydec_command("generate", said[0]["text"], *flags, *common)
        assert code == 0, err
        got = json.loads(out)
        assert got["token_ids"] == list(want.choices[0].token_ids)
        assert got["usage"]["prompt_tokens"] == want.usage["prompt_tokens"] > 50
        # The same by the text that stands for an image, in a text that is read as it stands.
        raw = "Is <image> left of <image> or not?"
        sources = tuple(Image(files[at]) for at in order)
        placed = generate(lm, raw, raw=True, source=sources, **more)
        code, out, err = polydec_command("generate", raw, "--raw", *flags, *common)
        assert code == 0 and json.loads(out)["token_ids"] == list(placed.choices[0].token_ids), err
        told.add((got["token_ids"][0], *placed.choices[0].token_ids))
    assert len(told) == 2, "the order decides nothing"


def test_another_number_of_images_than_places_is_one_sentence(polydec_command, model, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(file_of(picture()))
    flags = ("--image", str(path), "--image", str(path), "--model", model)
    code, _, err = polydec_command("generate", "what is <image>?", *flags)
    assert code == 2 and "prompt has 1 place for images (<image>) and the request holds 2" in err


def test_a_source_that_is_no_image_is_one_sentence(polydec_command, model):
    code, _, err = polydec_command("generate", "x", "--source", "a text", "--model", model)
    assert code == 2 and "source is no image" in err and len(err.strip().split("\n")) == 1
