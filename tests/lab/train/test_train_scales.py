"""Training a draft of small pictures and what lifts them: sizes, shared tiles, and the whole road to a picture."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import polydec
from picture_models import CLASSES, SIDE, draw_pictures, save_pictures, trained_model
from polydec.base.errors import RequestError
from polydec.cli.main import main
from polydec.lab.train.picture_data import read_pictures
from polydec.lab.train.pictures import make_low_rows, train_pictures, view_of_target
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.lab.train.specs.upsampler import UpsamplerSpec
from polydec.lab.train.upsampler import train_upsampler
from polydec.models.learned.kinds import upsampler
from polydec.models.nets.upsampling import UpsamplingShape
from polydec.models.text.tile_search import tokens_of_pixels

SMALL = {"steps": 6, "rows": 8, "width": 32, "layers": 1}


@pytest.fixture(scope="module")
def scales(tmp_path_factory):
    """Directories of a target, of a draft of half its size, and of what lifts its pictures."""
    folder = tmp_path_factory.mktemp("scales")
    target, _ = trained_model(folder, patch=2, colours=12, steps=6)
    images = str(folder / "pictures.npz")
    low = PicturesSpec(str(folder / "low"), images, low_of=str(target), **SMALL)
    lifting = UpsamplerSpec(
        str(folder / "up"), images, str(target), units=16, layers=1, steps=60, rows=16
    )
    results = train_pictures(low), train_upsampler(lifting)
    return [str(target), low.out, lifting.out, images], results


def loaded(scales):
    target, low, up, _ = scales[0]
    return polydec.load(target, draft=low, trained=[up], threads=1)


def test_a_draft_has_the_tiles_and_the_words_of_its_target(scales):
    target, low, _, _ = scales[0]
    one, other = (polydec.load(at, draft=None, threads=1) for at in (target, low))
    assert one.checkpoint.lm.vocab.same_tokens(other.checkpoint.lm.vocab)
    assert (one.checkpoint.view.tiles == other.checkpoint.view.tiles).all()
    assert other.checkpoint.view.classes == CLASSES
    assert (other.checkpoint.view.height, other.checkpoint.view.width) == (SIDE // 2, SIDE // 2)
    made = polydec.generate(other, "block", method="plain")
    assert made.picture.pixels.shape == (SIDE, SIDE, 1)


def test_what_lifts_learns_and_knows_both_sizes(scales):
    _, result = scales[1]
    assert result["curve"][-1][1] < 0.8 * result["curve"][0][1]
    assert 0 < result["held_out_right"] <= 1 and result["held_out"] > 0
    lifting = upsampler.load(scales[0][2])
    assert (lifting.shape.height, lifting.shape.ratio, lifting.shape.low_width) == (SIDE, 2, 2)
    config = json.loads((Path(scales[0][2]) / "config.json").read_text("utf-8"))
    assert config["held_out_nats"] == result["held_out_nats"]


@pytest.mark.parametrize("ratio", [2, 3])
def test_small_pictures_are_what_large_ones_are_averaged_down_to(scales, ratio):
    """Of what tokens draw, not of the pixels before: so a draft goes on behind what it will see."""
    view = view_of_target(scales[0][0], "low_of")
    given = read_pictures(scales[0][3], view.pixel_shape[0], view.classes)
    rows = make_low_rows(given, view, ratio)
    low = -(-SIDE // ratio)
    assert (rows.height, rows.width) == (low, low) and rows.learned.shape[1] == low**2 + 1
    assert torch.equal(rows.tiles, torch.from_numpy(view.tiles))
    # As a draft is given them: averaged down from tokens, block by block.
    lifting = replace(
        upsampler.load(scales[0][2]), shape=UpsamplingShape(SIDE, SIDE, ratio, 12, 1, 0)
    )
    tokens = tokens_of_pixels(given.pixels[given.is_learned()], view.tiles)
    for high, row in zip(tokens[:8].tolist(), rows.learned[:8].tolist(), strict=True):
        blocks = [lifting.shape.block_places(at) for at in range(low)]
        made = [x for b in blocks for x in lifting.shrink_block(high[b.start : b.stop])]
        assert made == row[1:]


@pytest.mark.parametrize("method", ["mulo-sd", "mulo-sd-exact"])
@pytest.mark.parametrize("options", [{}, {"trained": False}, {"drawn": True}, {"drawn": False}])
def test_pictures_are_drawn_by_both_methods(scales, method, options):
    made = polydec.generate(loaded(scales), "block", method=method, options=options, seed=3)
    assert len(made.token_ids) == SIDE * SIDE and made.metrics["target_passes"] <= SIDE * SIDE
    assert made.picture.pixels.shape == (2 * SIDE, 2 * SIDE, 1)


def test_a_draft_whose_context_is_shorter_bounds_no_answer(scales):
    made = polydec.generate(loaded(scales), "block", method="mulo-sd", max_tokens=SIDE * SIDE)
    assert len(made.token_ids) == SIDE * SIDE


def test_refusing_everything_draws_the_target_s_picture(scales):
    lm = loaded(scales)
    options = {"threshold": 1.5, "radius": 64}
    for seed in range(3):
        made = polydec.generate(lm, "down", method="mulo-sd", options=options, seed=seed)
        plain = polydec.generate(lm, "down", method="plain", seed=seed)
        assert made.token_ids == plain.token_ids


def test_guided_pictures_are_drawn_by_the_guided_law(scales):
    lm = loaded(scales)
    fields = {"steer": "cfg", "seed": 1}
    options = {"threshold": 1.5, "radius": 64}
    made = polydec.generate(lm, "across", method="mulo-sd", options=options, **fields)
    assert made.token_ids == polydec.generate(lm, "across", method="plain", **fields).token_ids
    exact = polydec.generate(lm, "across", method="mulo-sd-exact", **fields)
    assert len(exact.token_ids) == SIDE * SIDE


def test_the_command_line_takes_both_directories(scales, tmp_path, monkeypatch, capsys):
    target, low, up, _ = scales[0]
    out = tmp_path / "block.png"
    words = ["generate", "block", "--model", target, "--draft", low, "--with", up]
    words += ["--method", "mulo-sd", "--out", str(out)]
    words += ["--set", "radius=0", "--set", "near=2", "--set", "threshold=0.3"]
    monkeypatch.setattr(sys, "argv", ["polydec", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code and out.read_bytes().startswith(b"\x89PNG")
    assert str(out) in capsys.readouterr().out


def test_what_draws_no_pictures_token_by_token_has_no_draft(tmp_path, scales):
    images = scales[0][3]
    for name in ("zoo:tiny", str(trained_model(tmp_path, masked=True)[0])):
        with pytest.raises(RequestError, match="draws square pictures token by token"):
            train_pictures(PicturesSpec(str(tmp_path / "low"), images, low_of=name, **SMALL))
        with pytest.raises(RequestError, match="target is"):
            train_upsampler(UpsamplerSpec(str(tmp_path / "up"), images, name, steps=1))
    with pytest.raises(RequestError, match="masked is set"):
        PicturesSpec("out", images, low_of="zoo:digits", masked=True)
    with pytest.raises(RequestError, match="ratio"):
        UpsamplerSpec("out", images, ratio=1)


def test_pictures_in_colour_are_no_pictures_of_a_grey_model(tmp_path, scales):
    pixels, labels = draw_pictures()
    np.savez(tmp_path / "x.npz", images=np.stack([pixels] * 3, -1), labels=labels)
    spec = UpsamplerSpec(str(tmp_path / "up"), str(tmp_path / "x.npz"), scales[0][0], steps=1)
    with pytest.raises(RequestError, match="images has 3 values a pixel"):
        train_upsampler(spec)


def test_few_pictures_are_refused(tmp_path, scales):
    images = str(save_pictures(tmp_path / "one.npz", 1))
    with pytest.raises(RequestError, match="seven are learned from"):
        train_upsampler(UpsamplerSpec(str(tmp_path / "up"), images, scales[0][0], steps=1))
