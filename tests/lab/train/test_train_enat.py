"""Training a network that encodes tokens apart from gaps: what its loss hides, shows and learns."""

import json
import math
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import polydec
from picture_models import SIDE, trained_model
from polydec.base.errors import PolydecError, RequestError
from polydec.lab.train import enat
from polydec.lab.train.enat import AveragedEnat, enat_picture_loss, new_enat_modules
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.models.formats.enat_config import EnatShape, enat_config_content, read_enat_config

SHAPE = EnatShape(12, 8, 32, 1, 64, 2, 1, 65)
MASK = 11


class WatchedModules:
    """Calls of a network's halves, by name, with what they were given."""

    def __init__(self, monkeypatch):
        self.network = new_enat_modules(SHAPE, 0)
        self.calls = []
        for name in ("entry_states", "encode_tokens", "decode_gaps"):
            monkeypatch.setattr(self.network, name, self.watched(name, getattr(self.network, name)))

    def watched(self, name, inner):
        def call(*given):
            self.calls.append((name, given, torch.is_grad_enabled()))
            return inner(*given)

        return call

    def named(self, name):
        return [(given, grad) for which, given, grad in self.calls if which == name]


def rows(count=24, dropped=0):
    rng = torch.Generator().manual_seed(count)
    drawn = torch.randint(0, 8, (count, 64), generator=rng)
    row = torch.cat([torch.full((count, 1), 9), drawn], 1)
    row[:dropped, 0] = MASK
    return row


def loss_of(network, row, seed=0, reused=0.0, before=None):
    rng = torch.Generator().manual_seed(seed)
    return enat_picture_loss(network, before or network, MASK, reused, 0.1, row, rng)


def test_gaps_are_hidden_and_the_class_is_not(monkeypatch):
    watch = WatchedModules(monkeypatch)
    row = rows()
    assert torch.isfinite(loss_of(watch.network, row))
    ((tokens, places), _), ((gaps, gap_places), _) = watch.named("entry_states")
    assert (gaps == MASK).all() and (places[:, 0] == 0).all() and (tokens[:, 0] == 9).all()
    assert torch.equal(tokens, row.gather(1, places))
    both = torch.cat([places, gap_places], 1).sort(1).values
    assert torch.equal(both, torch.arange(65).expand_as(both))


def test_shares_of_gaps_follow_beta_12_3(monkeypatch):
    watch = WatchedModules(monkeypatch)
    for seed in range(150):
        loss_of(watch.network, rows(1), seed)
    shares = torch.tensor([given[0].shape[1] / 64 for given, _ in watch.named("decode_gaps")])
    # Mean 0.8 and standard deviation 0.1.
    assert abs(float(shares.mean()) - 0.8) < 0.03 and abs(float(shares.std()) - 0.1) < 0.03
    assert shares.min() > 0 and shares.max() < 1


def test_a_picture_whose_class_is_left_out_has_no_place_for_it(monkeypatch):
    watch = WatchedModules(monkeypatch)
    loss_of(watch.network, rows(6, dropped=2))
    (tokens, places), _ = watch.named("entry_states")[0]
    assert len(tokens) == 2 and not (places == 0).any() and not (tokens == MASK).any()


def test_older_tokens_are_encoded_before_and_without_a_gradient(monkeypatch):
    watch = WatchedModules(monkeypatch)
    for seed in range(40):
        watch.calls.clear()
        loss_of(watch.network, rows(4), seed, reused=1.0).backward()
        encoded = watch.named("encode_tokens")
        old, learns = encoded[0]
        assert not learns
        if len(encoded) == 2:
            (_, shown, _), learns = encoded[1]
            assert learns and shown.shape[1] == old[0].shape[1]
            # The class is among the older ones.
            (_, places), _ = watch.named("entry_states")[0]
            assert (places[:, 0] == 0).all()
            break
    else:
        raise AssertionError("no batch had new tokens")
    assert watch.network.old_into.weight.grad is not None


def test_older_tokens_are_encoded_by_the_average(monkeypatch):
    """Not by the network that learns: what it is shown, and its loss, change with the average alone."""
    watch = WatchedModules(monkeypatch)
    other = new_enat_modules(SHAPE, 1)
    # An untrained layer changes nothing.
    rng = torch.Generator().manual_seed(2)
    for p in (*watch.network.parameters(), *other.parameters()):
        torch.nn.init.normal_(p, std=0.5, generator=rng)
    row = rows(4)
    own = loss_of(watch.network, row, 1, reused=1.0)
    watch.calls.clear()
    assert not torch.allclose(loss_of(watch.network, row, 1, reused=1.0, before=other), own)
    assert all(learns for _, learns in watch.named("encode_tokens"))


def test_an_average_follows_the_weights():
    both = AveragedEnat(SHAPE, 0)
    start = both.average.bias.clone()
    with torch.no_grad():
        both.learned.bias += 1.0
    both.follow_weights(0.75)
    torch.testing.assert_close(both.average.bias, start + 0.25)
    both.follow_weights(0.0)
    assert torch.equal(both.average.bias, both.learned.bias)
    assert not any(p.requires_grad for p in both.average.parameters())
    names = {n for n, p in both.named_parameters() if any(p is m for m in both.layer_matrices)}
    assert "learned.encoder.1.modulated.weight" in names and "learned.decoder.0.own.weight" in names
    assert all(".encoder." in name or ".decoder." in name for name in names)


def test_what_is_saved_is_the_average_of_all_steps(tmp_path):
    """With a share of 0 it is the weights of the last step; with one near 1 nearly those at the begin."""
    saved = []
    for average in (0.0, 0.9, 0.9999):
        folder = tmp_path / str(average)
        folder.mkdir()
        out, _ = trained_model(folder, masked=True, encoder=1, average=average)
        saved.append(load_file(out / "model.safetensors")["decoder.0.own.weight"].float())
    last, between, first = saved
    assert (last - first).abs().mean() > 1.5 * (between - first).abs().mean() > 0


def test_a_run_that_was_stopped_goes_on_to_the_same_average(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    out.mkdir()
    whole, _ = trained_model(whole, masked=True, encoder=1, steps=6)

    follow = AveragedEnat.follow_weights

    def stop_at_fourth(both, kept):
        follow(both, kept)
        stop_at_fourth.calls += 1
        if stop_at_fourth.calls == 4:
            signal.raise_signal(signal.SIGINT)

    stop_at_fourth.calls = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AveragedEnat, "follow_weights", stop_at_fourth)
        with pytest.raises(KeyboardInterrupt, match="stopped after 4 of 6"):
            trained_model(out, masked=True, encoder=1, steps=6)
    parts, _ = trained_model(out, masked=True, encoder=1, steps=6)
    one, other = (load_file(at / "model.safetensors") for at in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_without_reuse_nothing_is_older(monkeypatch):
    watch = WatchedModules(monkeypatch)
    for seed in range(10):
        loss_of(watch.network, rows(2), seed)
    assert all(given[1].shape[1] == 0 for given, _ in watch.named("encode_tokens"))
    assert enat.KEPT < enat.DRAWN


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    options = {"masked": True, "encoder": 2, "steps": 60, "drop": 0.2, "muon": 0.0}
    return trained_model(tmp_path_factory.mktemp("enat"), **options)


def test_the_loss_falls_and_the_directory_fills_canvases(trained):
    out, result = trained
    # A network that knows nothing has log(4): a token is one of 4 tiles.
    assert result["curve"][-1][1] < min(0.8 * math.log(4), result["curve"][0][1])
    lm = polydec.load(str(out), draft=None, threads=1)
    view = lm.checkpoint.view
    for method, options in (
        ("enat", {}),
        ("enat", {"reuse": False}),
        ("enat", {"guidance": 1.0}),
        ("maskgit", {"steps": 4}),
        ("left-to-right", {}),
    ):
        made = polydec.generate(lm, "down", method=method, options=options, seed=1)
        assert len(made.token_ids) == SIDE * SIDE and max(made.token_ids) < len(view.tiles)
        assert made.picture.pixels.shape == (SIDE, SIDE, 1)


def test_a_config_is_read_as_it_was_written_or_refused():
    content = {**enat_config_content(SHAPE), "polydec_mask": MASK}
    assert read_enat_config(content) == SHAPE
    for name, value in (
        ("heads", 5),
        ("written", 13),
        ("decoder", 0),
        ("width", "wide"),
        ("polydec_mask", 12),
        ("polydec_mask", 3),
        ("polydec_mask", None),
    ):
        with pytest.raises(PolydecError, match=name):
            read_enat_config({**content, name: value})


def test_a_tensor_of_another_shape_is_refused(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "model")
    at = tmp_path / "model" / "config.json"
    config = json.loads(at.read_text("utf-8"))
    at.write_text(json.dumps({**config, "inner": 100}), "utf-8")
    with pytest.raises(polydec.PolydecError, match="shape"):
        polydec.load(str(tmp_path / "model"), draft=None)


def test_only_a_masked_model_encodes_tokens_apart():
    with pytest.raises(RequestError, match="encoder is 2"):
        PicturesSpec("out", "images", encoder=2)
