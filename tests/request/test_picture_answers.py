"""A picture as an answer: its length, its prompt, what comes back."""

import json
import shutil

import pytest
import torch

import polydec
from picture_models import CLASSES, SIDE, trained_model
from polydec import Ask, Engine
from polydec.base.errors import FileError, RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest

LENGTH = SIDE * SIDE


def set_context(folder, positions):
    config = folder / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps({**said, "max_position_embeddings": positions}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose context has room for more than a picture."""
    made = trained_model(tmp_path_factory.mktemp("pictures"))[0]
    set_context(made, 4 * LENGTH)
    return made


@pytest.fixture(scope="module")
def lm(folder):
    return polydec.load(str(folder), draft=None, threads=1)


def answer(lm, prompt="block", **fields):
    return polydec.generate(lm, prompt, method="plain", **fields)


def test_an_answer_is_as_long_as_a_picture(lm):
    made = answer(lm, n=2, seed=3)
    assert [len(c.token_ids) for c in made.choices] == [LENGTH, LENGTH]
    view = lm.checkpoint.view
    for choice in made.choices:
        assert all(x < len(view.tiles) for x in choice.token_ids)
        assert (choice.picture.pixels == view.draw_tokens(choice.token_ids).pixels).all()
    assert made.picture is made.choices[0].picture


def test_a_picture_has_no_word_of_a_prompt(lm):
    """Whatever the network would say: the head knows tiles alone."""
    session = lm.checkpoint.lm.open_session(lm.encode("block"))
    scores = run_coroutines(
        [session.score_draft(Draft.chain_draft(lm.encode("block")[-1]), ScoreRequest())]
    )[0]
    row_V = scores.logprob_row(0)
    tiles = len(lm.checkpoint.view.tiles)
    assert torch.isfinite(row_V[:tiles]).all() and not torch.isfinite(row_V[tiles:]).any()


def test_a_shorter_picture_is_drawn_as_far_as_it_goes(lm):
    made = answer(lm, max_tokens=3)
    assert made.usage["completion_tokens"] == 3 and made.picture.pixels.shape == (SIDE, SIDE, 1)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": "cat"}, "prompt is 'cat': this model draws across, down, block, any"),
        ({"prompt": "block down"}, "prompt is .block down.: did you mean block or down"),
        ({"max_tokens": LENGTH + 1}, f"a picture of .* has {LENGTH} tokens, so leave it out"),
        ({"units": "bytes"}, "units is bytes: the tokens of a picture have no bytes"),
        ({"steer": "cfg", "negative_prompt": "cat"}, "negative_prompt is 'cat'"),
    ],
)
def test_what_no_picture_has_is_refused(lm, fields, says):
    with pytest.raises(RequestError, match=says):
        answer(lm, **fields)


def test_guidance_reads_the_prompt_without_a_class(lm):
    engine = Engine(lm)
    dropped = lm.encode("any")
    for fields in ({"steer": "cfg"}, {"negative_prompt": ""}, {"negative_prompt": "any"}):
        plan = engine.submit(Ask("block", **fields)).plan
        assert plan.steering.second == dropped
    assert engine.submit(Ask("block", negative_prompt="down")).plan.steering.second != dropped


def test_a_notebook_shows_the_picture(lm):
    made = answer(lm, n=2)
    assert made._repr_html_().count("data:image/png;base64,") == 2
    assert made.picture._repr_png_() == made.picture.png_file


def test_the_json_object_has_the_file(lm):
    made = answer(lm, n=2)
    said = made.to_json()
    assert said["b64_json"] == made.picture.base64_text
    assert [c["b64_json"] for c in said["choices"]] == [c.picture.base64_text for c in made.choices]


def test_a_text_has_no_picture():
    made = polydec.generate(polydec.load("zoo:tiny", draft=None), "a", max_tokens=1)
    assert made.picture is None and "b64_json" not in made.to_json()


def test_a_model_whose_context_holds_no_picture_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    set_context(tmp_path / "model", LENGTH)
    with pytest.raises(FileError, match=f"a picture has {LENGTH} tokens behind its prompt"):
        polydec.load(str(tmp_path / "model"), draft=None)


def test_classes_are_those_of_the_training(lm):
    assert lm.checkpoint.view.classes == CLASSES and lm.checkpoint.view.dropped == "any"
