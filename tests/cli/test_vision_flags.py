"""`--image FILE` with a vision-language model: it stands before the prompt."""

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


def test_a_source_that_is_no_image_is_one_sentence(polydec_command, model):
    code, _, err = polydec_command("generate", "x", "--source", "a text", "--model", model)
    assert code == 2 and "source is no image" in err and len(err.strip().split("\n")) == 1
