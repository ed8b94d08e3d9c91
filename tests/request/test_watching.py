"""A stream of images is put into words where its foretold embedding changes, and only there."""

import json

import numpy as np
import pytest
import torch

from polydec import Ask, Image, Sampling, Soft, generate, load
from polydec.base.errors import MissingError, RequestError
from polydec.lab.train.scenes import CAPTION, draw_scene, draw_scene_pixels
from polydec.models.learned.kinds import answer_embedder
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.stream_policies import ChangeSegments, UniformSegments, WardSegments
from polydec.request.watching import foretold_embedding, watch_images


@pytest.fixture(scope="module")
def bare():
    torch.set_num_threads(1)
    return load("zoo:vision", draft=None, threads=1)


@pytest.fixture(scope="module")
def embedder(bare):
    width = bare.network.embed_tokens((0,)).shape[1]
    (made,) = answer_embedder.examples(bare.checkpoint.lm.vocab, width, width)
    return made


@pytest.fixture(scope="module")
def lm(bare, embedder):
    return type(bare)(bare.checkpoint, None, (embedder,))


@pytest.fixture(scope="module")
def files():
    rng = np.random.default_rng(3)
    scenes = [draw_scene(rng, unseen=True) for _ in range(3)]
    return [DrawnPicture(draw_scene_pixels(x, rng)).png_file for x in scenes for _ in range(2)]


def test_each_segment_is_told_from_its_embedding(lm, embedder, files):
    images = [Image(file) for file in files]
    asked = lm.encode_prompt(CAPTION)
    made = torch.stack([foretold_embedding(lm, embedder, image, asked) for image in images])
    torch.testing.assert_close(made.norm(dim=-1), torch.ones(len(made)))
    assert not made[0].allclose(made[2], atol=1e-3)
    for policy in (UniformSegments(), WardSegments(2), ChangeSegments(1e-4)):
        segments = policy.part_stream(made)
        got = watch_images(lm, images, CAPTION, policy, max_tokens=9)
        assert [(x.first, x.last) for x in got] == [(x.first, x.stop - 1) for x in segments]
        for told, segment in zip(got, segments, strict=True):
            vectors = embedder.shown_vectors(segment.embedding_E)
            want = generate(
                lm, [Soft(vectors), *asked], max_tokens=9, sampling=Sampling(temperature=0.0)
            ).choices[0]
            assert (told.text, told.tokens) == (want.text.strip(), len(want.token_ids))


def test_what_does_not_change_is_not_told_again(lm, files, monkeypatch):
    asked = list[Ask]()
    from polydec.request import watching

    class CountingEngine(watching.Engine):
        def submit(self, ask, **more):
            asked.append(ask)
            return super().submit(ask, **more)

    monkeypatch.setattr(watching, "Engine", CountingEngine)
    images = [Image(files[0])] * 5
    before = lm.checkpoint.vision.passes
    (told,) = watch_images(lm, images, CAPTION, ChangeSegments(0.01), max_tokens=4)
    assert (told.first, told.last) == (0, 4) and len(asked) == 1
    assert lm.checkpoint.vision.passes <= before + 1


def test_what_cannot_be_watched_is_refused(bare, lm, files):
    image = Image(files[0])
    with pytest.raises(RequestError, match=r"^images is empty"):
        watch_images(lm, [], CAPTION, UniformSegments())
    with pytest.raises(MissingError, match="answer-embedder"):
        watch_images(bare, [image], CAPTION, UniformSegments())
    words = load("zoo:tiny", draft=None)
    with pytest.raises(RequestError, match="reads text only"):
        watch_images(words, [image], CAPTION, UniformSegments())


def test_the_command_prints_a_text_a_segment(polydec_command, embedder, files, tmp_path):
    answer_embedder.save(tmp_path / "made", embedder, {})
    paths = list[str]()
    for i, file in enumerate(files[:4]):
        (tmp_path / f"{i}.png").write_bytes(file)
        paths.append(str(tmp_path / f"{i}.png"))
    common = (*paths, "--with", str(tmp_path / "made"), "--max-tokens", "3")
    for flags, count in ((("--every", "2"), 2), (("--segments", "3"), 3), (("--cost", "9"), 1)):
        code, out, err = polydec_command("watch", *common, *flags)
        assert code == 0, err
        lines = [json.loads(line) for line in out.strip().splitlines()]
        assert len(lines) == count and lines[-1]["last"] == 3
        assert set(lines[0]) == {"first", "last", "text", "tokens"}
    code, out, _ = polydec_command(
        "watch", *common, "--change", "0", "--gap", "2", "--silence", "2"
    )
    assert code == 0 and [json.loads(line)["first"] for line in out.strip().splitlines()] == [0, 2]
    code, out, _ = polydec_command("watch", *common, "--change", "2", "--spread", "0")
    assert code == 0 and len(out.strip().splitlines()) > 1
    for flags in ((), ("--every", "2", "--change", "0.5"), ("--every", "2", "--gap", "3")):
        code, _, err = polydec_command("watch", *common, *flags)
        assert code == 2 and len(err.strip().splitlines()) == 1, err
