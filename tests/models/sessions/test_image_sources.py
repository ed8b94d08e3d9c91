"""An image as the source of an encoder-decoder model: what is read of it, what is shared, what is refused."""

import base64
import io
import json
from functools import partial

import pytest
import torch
from PIL import Image as Pictures

import micro
from polydec import Ask, Engine, Image, Sampling, generate, load
from polydec.base.errors import FileError, PolydecError, RequestError
from polydec.base.subprocess_worker import WorkerEndedError
from polydec.lab.testing.check_target import check_target
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats import image_decoding, images
from polydec.models.formats.image_decoding import (
    padded_strip,
    read_pixel_strip,
    read_square_pixels,
)
from polydec.models.formats.images import PixelStrip, StripShape
from polydec.models.nets.strips import strip_windows
from polydec.request.image_sources import decode_request_images, requested_image
from reader_model import LETTERS, STRIP, write_reader

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    lm = load(str(write_reader(tmp_path_factory.mktemp("reader") / "m")), draft=None)
    vars(lm)["costs"] = PassCosts()
    return lm


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    return load(str(micro.write(tmp_path_factory.mktemp("reader") / "text")), draft=None)


def noise(width=30, height=8, seed=1, file="PNG", **more):
    """An image's file, of patches of random greys."""
    g = torch.Generator().manual_seed(seed)
    greys = torch.randint(0, 256, (height // 2, width), generator=g, dtype=torch.uint8)
    greys = greys.repeat_interleave(2, 0).repeat_interleave(4, 1)[:, :width].contiguous()
    return saved(Pictures.fromarray(greys.numpy()), file, **more)


def saved(picture, file="PNG", **more):
    to = io.BytesIO()
    picture.save(to, file, **more)
    return to.getvalue()


def asked(source, **more):
    return {"sampling": GREEDY, "max_tokens": 12, "method": "plain", "source": source, **more}


def test_an_image_is_read_as_strips_of_its_own_columns():
    strip = padded_strip(bytes(range(8 * 10)), StripShape(8, 4, 8, 16))
    assert len(strip) == 3 and len(strip.pixels) == 8 * 12
    rows = strip_windows(strip, StripShape(8, 4, 8, 16)).view(3, 8, 8)
    # The first window begins two columns of paper before the image, which has no ink.
    assert rows[0, :, :2].abs().max() == 0
    assert torch.equal(rows[0, :, 6:], rows[1, :, 2:4])
    assert float(rows[0, 0, 2]) == 1.0 and float(rows[2, 7, 2]) == pytest.approx(1 - 78 / 255)


@pytest.mark.parametrize("file", ["PNG", "BMP", "GIF", "WEBP"])
def test_files_of_equal_pixels_are_one_source(file):
    more = {"lossless": True} if file == "WEBP" else {}
    got = read_pixel_strip(Image(noise(file=file, **more)), STRIP)
    assert got == read_pixel_strip(Image(noise()), STRIP) and hash(got) == hash(
        read_pixel_strip(Image(noise()), STRIP)
    )
    assert got != read_pixel_strip(Image(noise(seed=2)), STRIP)


def test_an_image_is_scaled_and_transparency_is_paper():
    large = Pictures.new("RGBA", (60, 16), (0, 0, 0, 0))
    got = read_pixel_strip(Image(saved(large)), STRIP)
    assert len(got) == 8 and set(got.pixels) == {255}
    red = read_pixel_strip(Image(saved(Pictures.new("RGB", (40, 8), "red"))), STRIP)
    assert set(red.pixels) == {76}


def test_a_photo_that_says_it_lies_on_its_side_is_turned():
    lying = Pictures.new("L", (8, 40), 200)
    exif = Pictures.Exif()
    exif[0x0112] = 6
    assert len(read_pixel_strip(Image(saved(lying, "JPEG", exif=exif)), STRIP)) == 10


def test_a_square_of_colours_is_averaged_over_areas():
    red = Pictures.new("RGBA", (8, 4), (255, 0, 0, 255))
    # A quarter is transparent, and stands on white.
    red.paste((0, 0, 0, 0), (0, 0, 4, 2))
    got = read_square_pixels(Image(saved(red)), 2)
    assert list(got) == [255, 255, 255, 255, 0, 0, 255, 0, 0, 255, 0, 0]
    halves = Pictures.new("L", (4, 4), 0)
    halves.paste(200, (0, 0, 1, 4))
    assert (
        list(read_square_pixels(Image(saved(halves)), 2))
        == [100] * 3 + [0] * 3 + [100] * 3 + [0] * 3
    )


def animated():
    frames = [Pictures.new("L", (12, 8), shade) for shade in (0, 120, 250)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def huge():
    """A PNG of a few bytes that says it has 10^10 pixels."""
    whole = bytearray(noise())
    whole[16:24] = (100_000).to_bytes(4, "big") * 2
    import zlib

    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    return bytes(whole)


WRONG = {
    "empty": (b"", "image is empty"),
    "no image": (b"hello, this is no image", "image is none of PNG, JPEG"),
    "truncated": (noise(width=200)[:150], "image cannot be decoded: "),
    "huge": (huge(), "image has 100000 x 100000 pixels: at most"),
    "animated": (animated(), "image is animated"),
    "too long": (noise(width=4000), "image has 4000 x 8 pixels, which are 4000 x 8 as the model"),
    "too large": (b"x" * (images.MOST_BYTES + 1), "image has 8388609 bytes"),
    "no such file": ("nowhere.png", "file 'nowhere.png' cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_an_image_is_one_sentence(lm, case):
    data, said = WRONG[case]
    with pytest.raises(PolydecError) as refused:
        generate(lm, "", **asked(Image(data)))
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)
    assert len(str(refused.value)) <= 300


def test_what_takes_the_worker_down_is_refused(monkeypatch):
    def ended(request):
        raise WorkerEndedError("it takes more time or memory than an image may", again=True)

    monkeypatch.setattr(image_decoding._WORKER, "ask_worker", ended)
    with pytest.raises(RequestError) as refused:
        read_pixel_strip(Image(noise()), STRIP)
    assert str(refused.value).startswith("image cannot be decoded: it takes more time or memory")


def test_the_law_of_an_image_keeps_the_contract(lm):
    strip = read_pixel_strip(Image(noise()), STRIP)
    check_target(lm.checkpoint.lm.law_given_source(strip), prompt=(0, 3))


def test_images_of_any_width_read_the_same_in_company(lm):
    sources = [Image(noise(width=w, seed=w)) for w in (9, 30, 64, 17)]
    alone = [generate(lm, "", **asked(s)).choices[0].token_ids for s in sources]
    engine = Engine(lm)
    tickets = [engine.submit("", **asked(s)) for s in sources]
    encoder = lm.checkpoint.lm.encoder
    before = encoder.passes
    together = [done.choices[0].token_ids for done in engine.run(tickets)]
    assert together == alone and len(set(alone)) > 1
    assert encoder.passes == before + 1


def test_equal_images_share_what_the_encoder_left(lm):
    engine = Engine(lm)
    tickets = [engine.submit("", **asked(Image(noise(file=f)))) for f in ("PNG", "BMP", "PNG")]
    laws = {id(t.plan.encoded.model.checkpoint.lm) for t in tickets}
    assert len(laws) == 1
    calls = list[int]()
    encoder = lm.checkpoint.lm.encoder
    made = encoder.forward

    def counted(queries):
        calls.append(len(queries))
        return made(queries)

    encoder.forward = counted
    try:
        engine.run(tickets)
    finally:
        del encoder.forward
    assert calls == [3] or sum(calls) <= 3  # equal sources of a pass are read once
    salted = engine.submit("", **asked(Image(noise()), cache_salt="other"))
    assert id(salted.plan.encoded.model.checkpoint.lm) not in laws


def test_usage_counts_positions_and_the_prompt_begins_the_answer(lm):
    done = generate(lm, LETTERS[:2], **asked(Image(noise())))
    # 8 positions of the image, the token that begins every text, two letters.
    assert done.usage["prompt_tokens"] == 8 + 1 + 2


@pytest.mark.parametrize("method", ["prompt-lookup", "jacobi", "beam", "auto"])
def test_methods_decode_behind_an_image(lm, method):
    got = generate(lm, "", **asked(Image(noise()), method=method)).choices[0].token_ids
    if method != "beam":
        assert got == generate(lm, "", **asked(Image(noise()))).choices[0].token_ids


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def message(*parts):
    return [{"role": "user", "content": list(parts)}]


def image_part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_a_message_with_a_data_url_is_the_same_request(lm):
    fields = {k: v for k, v in asked(None).items() if k != "source"}
    want = generate(lm, "", **asked(Image(noise()))).choices[0].token_ids
    for prompt in (
        message(image_part(data_url(noise()))),
        message({"type": "text", "text": ""}, image_part(data_url(noise()))),
    ):
        assert generate(lm, prompt, **fields).choices[0].token_ids == want
    part = generate(lm, "", **asked(image_part(data_url(noise())))).choices[0].token_ids
    assert part == want


def test_a_request_whose_image_is_decoded_is_planned_without_the_decoder(lm, monkeypatch):
    want = generate(lm, "", **asked(Image(noise()))).choices[0].token_ids
    fields = asked(None)
    del fields["source"]
    asks = [
        Ask("", source=Image(noise()), **fields),
        Ask("", source=image_part(data_url(noise())), **fields),
        Ask(message({"type": "text", "text": ""}, image_part(data_url(noise()))), **fields),
    ]
    ready = [
        decode_request_images(ask, partial(read_pixel_strip, shape=STRIP), STRIP) for ask in asks
    ]
    monkeypatch.setattr(image_decoding._WORKER, "ask_worker", None)
    assert [generate(lm, ask).choices[0].token_ids for ask in ready] == [want] * 3
    images = [requested_image(ask, "reader") for ask in ready]
    assert [x.content for x in images] == [read_pixel_strip(images[0], STRIP)] * 3
    assert all(x.image == Image(noise()) and x.form == STRIP for x in images)
    # A model that reads it in another form has it decoded anew.
    monkeypatch.undo()
    other = StripShape(8, 2, 8, 64)
    assert read_pixel_strip(images[0], other) == read_pixel_strip(Image(noise()), other)


REFUSED = {
    "an address": (
        message(image_part("https://example.org/word.png")),
        None,
        "messages[0].content[0].image_url has the url 'https://example.org/word.png': addresses are not fetched",
    ),
    "a file of the server": (
        message(image_part("file:///etc/passwd")),
        None,
        "messages[0].content[0].image_url has the url 'file:///etc/passwd': addresses are not",
    ),
    "no url": (message({"type": "image_url"}), None, "messages[0].content[0].image_url is None"),
    "no base64": (
        message(image_part("data:image/png;base64,???")),
        None,
        "messages[0].content[0].image_url holds a data URL that is no base64",
    ),
    "another encoding": (
        message(image_part("data:text/plain,abc")),
        None,
        "messages[0].content[0].image_url begins with 'data:text/plain'",
    ),
    "two images": (
        message(image_part(data_url(noise())), image_part(data_url(noise()))),
        None,
        "the request holds 2 images",
    ),
    "text beside it": (
        message({"type": "text", "text": "what is it?"}, image_part(data_url(noise()))),
        None,
        "messages[0] holds text",
    ),
    "no image": ("abc", None, "source is none: "),
    "a text": ("", "abc", "source is a text: "),
    "another part": ("", {"type": "input_audio"}, "source is no image: "),
    "token ids": ("", [1, 2], "source is no image: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_requests_of_a_reader_are_refused(lm, case):
    prompt, source, said = REFUSED[case]
    with pytest.raises(PolydecError) as refused:
        generate(lm, prompt, **asked(source))
    assert str(refused.value).startswith(said)


def test_models_of_text_refuse_an_image_by_name(text_model):
    for prompt, source, where in (
        ("x", Image(noise()), "source is an image"),
        (message(image_part(data_url(noise()))), None, "messages[0].content[0] is an image"),
    ):
        with pytest.raises(PolydecError) as refused:
            generate(text_model, prompt, **asked(source))
        assert str(refused.value).startswith(f"{where}: {text_model.name} reads text only")


def test_an_encoder_of_text_refuses_an_image_and_one_of_images_text(lm):
    law = lm.checkpoint.lm
    strip = read_pixel_strip(Image(noise()), STRIP)
    with pytest.raises(PolydecError, match=r"^source is a text: this model reads an image"):
        law.law_given_source((3, 4))
    with pytest.raises(PolydecError, match=r"^source is an image of 16 positions of 2 x 8"):
        law.law_given_source(PixelStrip(8, 2, strip.pixels))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("strip_height", 3, "strip_height is 3: it must lie in 4 to 256"),
        ("strip_window", 2, "strip_window is 2: it must lie in 4 to 512"),
        ("strip_window", 7, "strip_window is 7: what it is wider"),
        ("strip_most", None, "strip_most is None"),
        ("strip_stride", True, "strip_stride is True"),
    ],
)
def test_damaged_configs_are_one_sentence(tmp_path, field, value, said):
    path = write_reader(tmp_path / "m")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(FileError) as refused:
        load(str(path), draft=None)
    assert said in str(refused.value)
