"""What stands beside a prompt with images: the same prompt without them, and other texts behind them."""

import numpy as np
import pytest
import torch

import micro
from polydec import Ask, Image, Sampling, generate, load
from polydec.base.errors import PolydecError
from polydec.lab.train.scenes import CAPTION, VIEWS, draw_scene, draw_scene_pixels
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.ask import plan_request

GREEDY = Sampling(temperature=0.0)
CERTAIN = Sampling(temperature=0.7, top_k=1)
"""What a search draws is the likeliest token."""


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    return load("zoo:vision", draft=None, threads=1)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(5)
    scenes = [draw_scene(rng, unseen=True) for _ in range(3)]
    return [Image(DrawnPicture(draw_scene_pixels(x, rng)).png_file) for x in scenes]


def written(lm, prompt, image=None, **more):
    given = {} if image is None else {"source": image}
    fields = {"max_tokens": 32, "sampling": GREEDY, "method": "plain", **given, **more}
    return generate(lm, prompt, **fields).choices[0].text


def guided(lm, prompt, image, scale, **more):
    return written(lm, prompt, image, steer="cfg", steer_options={"scale": scale}, **more)


def test_guidance_holds_a_prompt_with_an_image_against_the_same_without(lm, images):
    for image in images:
        assert guided(lm, CAPTION, image, 1.0) == written(lm, CAPTION, image)
        # At scale 0 nothing is left of the image.
        assert guided(lm, CAPTION, image, 0.0) == written(lm, CAPTION)
        for scale in (0.3, 2.0):
            want = guided(lm, CAPTION, image, scale, negative_prompt=CAPTION)
            assert guided(lm, CAPTION, image, scale) == want
    assert guided(lm, CAPTION, images[0], 0.3) != written(lm, CAPTION, images[0])


def test_images_of_messages_and_places_in_a_text_are_left_out(lm, images):
    shown = {"type": "image_url", "image_url": images[0]}
    said = {"type": "text", "text": CAPTION}
    want = guided(lm, CAPTION, images[0], 0.3)
    for content, source in (([shown, said], None), ([{"type": "image"}, said], images[0])):
        messages = [{"role": "user", "content": content}]
        assert guided(lm, messages, source, 0.3) == want
    mark = lm.checkpoint.vision.token_text
    raw = guided(lm, f"{mark} {CAPTION} <answer>", images[0], 0.3, raw=True)
    assert raw.strip() == want.strip()


def test_without_an_image_a_second_prompt_must_be_given(lm):
    with pytest.raises(PolydecError, match="second prompt"):
        plan_request(lm, Ask(CAPTION, steer="cfg"))


def test_views_are_asked_behind_the_image_and_stand_before_the_question(lm, images):
    """With draws that are certain each step is a request of its own."""
    asked = "is there a 7"
    options = {"apart": True, "views": CAPTION, "width": 1, "drawn": False, "answers": "yes|no"}
    for image in images:
        caption = written(lm, CAPTION, image)
        want = written(lm, f"{caption}\n{asked}", image)
        for more in ({}, {"steer": "cfg", "steer_options": {"scale": 1.0}}):
            got = written(lm, asked, image, method="mvp", options=options, sampling=CERTAIN, **more)
            assert got.strip() == want.strip()
    captions = {written(lm, CAPTION, image) for image in images}
    assert len(captions) == len(images)


def test_guidance_reaches_views(lm, images):
    """Each prompt is held against itself without the image, not against the question."""
    ask = Ask(
        "is there a 7",
        source=images[0],
        method="mvp",
        options={"apart": True, "views": CAPTION},
        sampling=Sampling(temperature=1.0),
        steer="cfg",
        steer_options={"scale": 0.0},
    )
    asked = plan_request(lm, ask).decoder.apart.law_behind(CAPTION)
    got = micro.law_at_end(asked.target, asked.prompt)
    want = micro.law_at_end(lm.checkpoint.lm, lm.encode_prompt(CAPTION))
    torch.testing.assert_close(got.double(), want.double(), atol=1e-5, rtol=0.0)


def test_an_image_is_read_once_for_all_views(lm, images):
    before = lm.checkpoint.vision.passes
    fresh = Image(DrawnPicture(np.full((48, 48, 3), 240, dtype=np.uint8)).png_file)
    options = {"apart": True, "views": "|".join(VIEWS), "most": 4}
    written(lm, "is there a 7", fresh, method="mvp", options=options, sampling=CERTAIN)
    assert lm.checkpoint.vision.passes == before + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [{"role": "user", "content": "is there a 7"}]},
        {"reuse": "prefix"},
    ],
    ids=str,
)
def test_what_views_do_not_go_with_is_refused(lm, images, fields):
    options = {"apart": True, "views": CAPTION}
    prompt = fields.pop("prompt", "is there a 7")
    with pytest.raises(PolydecError, match=r"^apart is true"):
        plan_request(lm, Ask(prompt, source=images[0], method="mvp", options=options, **fields))


def test_published_settings_are_legal(lm, images):
    options = {"published": True}
    text = written(lm, "is there a 7", images[0], method="mvp", options=options, sampling=CERTAIN)
    assert text.strip()
