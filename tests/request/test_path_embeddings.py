"""Vectors along several paths, each behind a learned prefix, and vectors of images with texts."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from polydec import Image, load
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.scenes import CAPTION, draw_scene, draw_scene_pixels
from polydec.models.learned.kinds import path_prefixes
from polydec.models.sessions.soft import state_of
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.ask import plan_request
from polydec.request.embedding import (
    EmbeddingInput,
    embedding_width,
    last_state,
    prepare_embedding_inputs,
)
from polydec.request.fields import Ask
from polydec.request.reading import EmbeddingSettings

TEXTS = ("there is a red 7", "a blue square")


@pytest.fixture(scope="module")
def bare():
    torch.set_num_threads(1)
    return load("zoo:vision", draft=None, threads=1)


@pytest.fixture(scope="module")
def prefixes(bare):
    (made,) = path_prefixes.examples(bare.checkpoint.lm.vocab, 128, 128)
    return made


@pytest.fixture(scope="module")
def lm(bare, prefixes):
    return type(bare)(bare.checkpoint, None, (prefixes,))


@pytest.fixture(scope="module")
def files():
    rng = np.random.default_rng(3)
    scenes = [draw_scene(rng, unseen=True) for _ in range(2)]
    return [DrawnPicture(draw_scene_pixels(x, rng)).png_file for x in scenes]


def near(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=0.0)


def test_paths_are_joined_from_single_ones(lm):
    single = [lm.embed(TEXTS, path=at) for at in (1, 2)]
    assert not single[0].allclose(single[1], atol=1e-2)
    both = torch.stack(single)
    near(lm.embed(TEXTS), normalize(both.mean(0), dim=-1))
    near(lm.embed(TEXTS, join="mean", normalised=False), both.mean(0))
    long = lm.embed(TEXTS, join="concat", normalised=False)
    near(long, both.transpose(0, 1).flatten(1))
    assert long.shape[1] == embedding_width(lm, EmbeddingSettings(join="concat")) == 256
    assert embedding_width(lm, EmbeddingSettings(path=1)) == 128


def test_a_path_is_the_model_behind_its_prefix(bare, lm, prefixes):
    """The state of the last token of a text that begins with the vectors."""
    text = bare.checkpoint.text.encode(TEXTS[0])
    for path in range(prefixes.path_count):
        ids = (*prefixes.prefix_ids(path), *text)
        states = [state for x in ids if (state := state_of(x)) is not None]
        near(torch.stack(states), prefixes.prefix_KMW[path])
        law = bare.checkpoint.lm
        (state,) = run_coroutines([last_state(law, EmbeddingInput(ids, None))])
        want = normalize(law.network.normed_states(state[None]), dim=-1)
        near(lm.embed(TEXTS[0], path=path + 1), want)


def test_all_paths_of_all_texts_share_one_pass(lm, monkeypatch):
    network = lm.checkpoint.lm.network
    calls = list[int]()
    forward = type(network).forward

    def counted(self, queries):
        calls.append(len(queries))
        return forward(self, queries)

    monkeypatch.setattr(type(network), "forward", counted)
    lm.embed(TEXTS)
    assert calls == [4]


def test_an_image_stands_before_its_text(bare, lm, files):
    images = [Image(file) for file in files]
    made = prepare_embedding_inputs(bare, [CAPTION], EmbeddingSettings(), images=images)
    for text, image in zip(made, images, strict=True):
        plan = plan_request(bare, Ask(CAPTION, source=image, raw=True))
        assert plan.encoded.vectors is not None
        assert text.ids == plan.encoded.vectors.instead
    both = bare.embed(CAPTION, images)
    assert both.shape == (2, 128) and not both[0].allclose(both[1], atol=1e-2)
    near(both[1], bare.embed([CAPTION], [images[1]])[0])
    around = bare.embed("7", images[:1], template="is there a {text}")
    near(around, bare.embed("is there a 7", images[:1]))
    near(lm.embed([CAPTION, "7"], images, path=2)[1], lm.embed("7", images[1:], path=2)[0])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"path": 3}, "path is 3: there are prefixes for 2"),
        ({"path": 1, "join": "mean"}, "one path has nothing to join"),
        ({"join": "sum"}, "join is 'sum'"),
        ({"layer": 1}, "layer is 1: prefixes are read"),
        ({"pool": "mean"}, "pool is 'mean': prefixes are read"),
        ({"prepend_to": 1}, "prepend_to is 1: prefixes are read"),
    ],
)
def test_what_does_not_go_with_paths_is_refused(lm, fields, why):
    with pytest.raises(RequestError, match=why):
        lm.embed(TEXTS, **fields)


def test_paths_and_images_need_what_reads_them(bare, files):
    with pytest.raises(RequestError, match="has no prefixes for several paths"):
        bare.embed(TEXTS, path=1)
    with pytest.raises(RequestError, match="has no prefixes for several paths"):
        bare.embed(TEXTS, join="concat")
    images = [Image(file) for file in files]
    with pytest.raises(RequestError, match="there are 2 images and 3 texts"):
        bare.embed([*TEXTS, "x"], images)
    with pytest.raises(RequestError, match="a placeholder stands before texts"):
        bare.embed(TEXTS, images, prepend_to=1)
    with pytest.raises(RequestError, match="give texts beside images"):
        bare.embed([[3, 4]], images)
    tiny = load("zoo:tiny", draft=None, threads=1)
    with pytest.raises(RequestError, match="zoo:tiny reads text only"):
        tiny.embed("x", images)


def test_a_prefix_takes_room_of_the_context(bare, lm):
    words = "a 7 " * 255
    assert len(bare.embed(words)) == 1
    with pytest.raises(RequestError, match="there is room for"):
        lm.embed(words)


def test_the_command_line(lm, prefixes, files, polydec_command, tmp_path):
    path_prefixes.save(tmp_path / "made", prefixes, {})
    (tmp_path / "scene.png").write_bytes(files[0])
    flags = ["--model", "zoo:vision", "--image", str(tmp_path / "scene.png")]
    trained = ["--with", str(tmp_path / "made")]
    for more, how in ((["--path", "2"], {"path": 2}), (["--join", "concat"], {"join": "concat"})):
        code, out, _ = polydec_command("embed", CAPTION, *flags, *trained, *more)
        assert not code
        row = torch.tensor(json.loads(out)["embedding"])
        near(row, lm.embed(CAPTION, [Image(files[0])], **how)[0])
    code, _, err = polydec_command("embed", CAPTION, *flags, "--path", "2")
    assert code == 2 and "path is 2: zoo:vision has no prefixes" in err
