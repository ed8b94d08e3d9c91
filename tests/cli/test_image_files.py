"""`--image FILE`: the source is an image; whatever is wrong with it is a sentence and exit code 2."""

import json

import pytest
from PIL import Image as Pictures

from polydec import Image, Sampling, generate, load
from reader_model import write_reader


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return str(write_reader(tmp_path_factory.mktemp("reader") / "m"))


@pytest.fixture
def word(tmp_path):
    picture = Pictures.new("L", (32, 8), 255)
    picture.paste(90, (4, 1, 12, 7))
    picture.save(tmp_path / "word.png")
    return str(tmp_path / "word.png")


def test_an_image_is_read(polydec_command, reader, word):
    code, out, _ = polydec_command(
        "generate", "--image", word, "--model", reader, "--max-tokens", "6", "--json"
    )
    lm = load(reader, draft=None)
    want = generate(lm, "", source=Image(word), max_tokens=6, sampling=Sampling(temperature=0.0))
    assert code == 0 and json.loads(out)["token_ids"] == list(want.choices[0].token_ids)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--image", "nowhere.png"), "file 'nowhere.png' cannot be read"),
        (("--source", "x"), "source is a text: "),
        (("--source", "x", "--image", "y.png"), "source and --image are both given"),
    ],
)
def test_what_is_wrong_is_one_sentence(polydec_command, reader, flags, said):
    code, _, err = polydec_command("generate", *flags, "--model", reader)
    assert code == 2 and said in err and len(err.strip().split("\n")) == 1


def test_damaged_files(polydec_command, reader, word, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    code, _, err = polydec_command(
        "generate", "--image", str(tmp_path / "bad.png"), "--model", reader
    )
    assert code == 2 and "image is none of PNG" in err
    code, _, err = polydec_command("generate", "x", "--image", word, "--model", "zoo:tiny")
    assert code == 2 and "source is an image: zoo:tiny reads text only" in err
