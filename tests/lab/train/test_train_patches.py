"""Training models of patches: what a loss is, what is saved, and the whole road to a picture."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import polydec
from picture_models import CLASSES, SIDE, draw_pictures, save_pictures
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.patches import (
    PatchModel,
    denoising_loss,
    draw_gaps,
    make_patch_rows,
    train_patches,
)
from polydec.lab.train.picture_data import read_pictures
from polydec.lab.train.pictures import view_of_target
from polydec.lab.train.probes.filter import load_diffusion_model
from polydec.lab.train.specs.patches import PatchesSpec
from polydec.methods.speculative.loop.patch_sets import PatchCanvases
from polydec.models.learned.kinds import patch_head
from polydec.models.nets.denoising import DenoisingHead, DenoisingShape

SMALL = {
    "classes": CLASSES,
    "side": SIDE,
    "drawing_steps": 3,
    "head_units": 16,
    "head_layers": 1,
    "rows": 8,
    "layers": 1,
}


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """Directories of a target and of a draft, and what was measured of them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("patches")
    images = str(save_pictures(folder / "pictures.npz"))
    target = PatchesSpec(str(folder / "target"), images, steps=40, width=64, **SMALL)
    draft = PatchesSpec(str(folder / "draft"), images, steps=10, width=32, **SMALL)
    return target, draft, (train_patches(target), train_patches(draft))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """The same of masked models."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("masked")
    images = str(save_pictures(folder / "pictures.npz"))
    target = PatchesSpec(str(folder / "target"), images, steps=60, width=64, masked=True, **SMALL)
    draft = PatchesSpec(str(folder / "draft"), images, steps=10, width=32, masked=True, **SMALL)
    return target, draft, (train_patches(target), train_patches(draft))


def loaded(patches, **more):
    target, draft, _ = patches
    heads = [f"{spec.out}/head" for spec in (draft, target)]
    return polydec.load(target.out, draft=draft.out, trained=heads, threads=1, **more)


def test_the_loss_falls_and_is_told(patches):
    target, _, results = patches
    curve = results[0]["curve"]
    assert curve[-1][1] < 0.5 * curve[0][1]
    assert results[0]["patches_of_picture"] == SIDE**2
    assert results[0]["head_parameters"] < results[0]["parameters"]
    assert math.isfinite(results[0]["held_out_nats"])
    config = json.loads((Path(target.out) / "config.json").read_text())
    assert config["polydec_picture"]["patch"] == 2


def test_every_method_draws_a_picture_of_a_class(patches):
    lm = loaded(patches)
    view = lm.checkpoint.view
    assert (view.height, view.width, view.patch, view.classes) == (8, 8, 2, CLASSES)
    for method in ("mar", "continuous-speculative", "continuous-speculative-exact"):
        made = polydec.generate(lm, "block", method=method, seed=2, n=2)
        assert [c.picture.pixels.shape for c in made.choices] == [(8, 8, 1)] * 2
        assert made.token_ids != made.choices[1].token_ids
        same = polydec.generate(lm, "block", method=method, seed=2)
        assert same.token_ids == made.token_ids
    plain = polydec.generate(lm, "block", method="mar", seed=2)
    assert polydec.generate(lm, "block", seed=2).token_ids == plain.token_ids


MASKED = (
    "masked-mar",
    "masked-continuous-speculative",
    "masked-continuous-speculative-exact",
    "recap-patches",
)


def test_a_masked_model_learns_and_every_method_draws_with_it(masked):
    curve = masked[2][0]["curve"]
    assert curve[-1][1] < 0.5 * curve[0][1]
    lm = loaded(masked)
    assert lm.family.name == "patches" and lm.checkpoint.view.dropped is None
    usual = polydec.generate(lm, "block", seed=2)
    for method in MASKED:
        options = {"steps": 5, "guidance": 1.0, "growing": True}
        made = polydec.generate(lm, "block", method=method, options=options, seed=2, n=2)
        assert [c.picture.pixels.shape for c in made.choices] == [(8, 8, 1)] * 2
        assert made.token_ids != made.choices[1].token_ids
        same = polydec.generate(lm, "block", method=method, options=options, seed=2)
        assert same.token_ids == made.token_ids
    assert polydec.generate(lm, "block", method="masked-mar", seed=2).token_ids == usual.token_ids


def test_the_network_that_serves_says_the_states_that_were_trained(masked):
    """States of gaps by the checkpoint's own canvas beside those of the network in training, of weights that are stored in
    16 bits."""
    target, _, _ = masked
    lm = polydec.load(target.out, draft=None, trained=[f"{target.out}/head"], threads=1)
    head = patch_head.load(f"{target.out}/head")
    network = PatchModel(
        LlamaShape(256 + 4, 64, 1, 2, 2, 192, SIDE**2 * 4 + 1),
        head.shape,
        0,
        masked=True,
    )
    point = safetensors.torch.load_file(f"{target.out}/model.safetensors")
    own = {k: v.float() for k, v in point.items() if k in network.model.state_dict()}
    network.model.load_state_dict({**network.model.state_dict(), **own})
    network.head.load_state_dict({k: v.float() for k, v in head.tensors.items()})
    value = torch.rand(1, SIDE**2, 4) * 2 - 1
    gap = torch.arange(SIDE**2) % 3 == 0
    wanted = network.gap_states(torch.tensor([257]), value, gap[None])[0][gap]
    canvases = PatchCanvases.of_model(lm.checkpoint.lm, head, (257,), 0.0)
    places = [int(p) for p in (~gap).nonzero()]
    canvas = canvases.with_patches(canvases.canvas, places, value[0][~gap].double())
    gaps = [int(p) for p in gap.nonzero()]
    (got,) = run_coroutines([canvases.set_states(0, canvas, gaps, 0.0, range(len(canvas)))])
    assert torch.allclose(got, wanted.double(), atol=1e-5)
    # Each of the others is seen.
    fewer = canvases.with_patches(canvases.canvas, places[1:], value[0][~gap].double()[1:])
    (less,) = run_coroutines([canvases.set_states(0, fewer, gaps, 0.0, range(len(canvas)))])
    assert (less - got).abs().max() > 1e-3
    canvases.close_boards()


def test_shares_of_masked_patches_follow_the_published_law():
    rng = torch.Generator().manual_seed(0)
    shares = torch.cat([draw_gaps(16, 200, 0.7, rng).double().mean(1) for _ in range(200)])
    assert float(shares.min()) >= 0.7 and float(shares.max()) == 1.0
    # The published law: normal around 1 with 0.25, of which 0.7 to 1 is kept.
    law = 1 - 0.25 * torch.randn(400_000, generator=rng).abs()
    law = law[law >= 0.7]
    assert float(shares.mean()) == pytest.approx(float(law.mean()) + 0.5 / 200, abs=0.003)
    assert float((shares < 0.85).double().mean()) == pytest.approx(
        float((law < 0.85).double().mean()), abs=0.03
    )
    few = draw_gaps(16, 10, 0.0, rng)
    assert few.any(1).all() and float(few.double().mean()) < 0.8
    places = torch.stack([draw_gaps(4, 10, 0.7, rng).double().mean(0) for _ in range(500)])
    assert float(places.mean(0).max() - places.mean(0).min()) < 0.1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"method": "mar"}, "method mar decodes autoregressive models .* take masked-mar"),
        ({"method": "maskgit"}, "method maskgit decodes masked-diffusion models"),
        ({"sampling": {"temperature": 0.5}}, "temperature is given"),
        ({"constraint": polydec.Regex("a")}, "constraint is given"),
        ({"steer": "cfg"}, "steer is"),
        ({"infill": "a{gap}"}, "infill is given"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is 1"),
        ({"options": {"guidance": 17}}, "guidance is 17"),
        ({"options": {"steps": 0}}, "steps is 0"),
    ],
)
def test_what_a_masked_model_cannot_do_is_refused(masked, asked, says):
    lm = loaded(masked)
    if "sampling" in asked:
        asked = {"sampling": lm.sampling_with(**asked["sampling"])}
    with pytest.raises(ValueError, match=says):
        polydec.generate(lm, "block", **asked)


def test_a_masked_model_takes_a_masked_draft(masked, patches):
    heads = [f"{spec.out}/head" for spec in (masked[0], patches[1])]
    mixed = polydec.load(masked[0].out, draft=patches[1].out, trained=heads, threads=1)
    with pytest.raises(ValueError, match="needs a masked patch draft model"):
        polydec.generate(mixed, "block", method="masked-continuous-speculative")
    other = polydec.load(patches[0].out, draft=None, threads=1)
    with pytest.raises(ValueError, match="method masked-mar decodes masked patch models"):
        polydec.generate(other, "block", method="masked-mar")
    with pytest.raises(ValueError, match="it must be a masked-diffusion model"):
        load_diffusion_model(masked[0].out)


def test_guidance_names_no_class(patches, masked):
    for given, method in ((patches, "mar"), (masked, "masked-mar")):
        lm = loaded(given)
        plain, guided = (
            polydec.generate(lm, "block", method=method, options={"guidance": g}, seed=3)
            for g in (0, 4)
        )
        assert plain.token_ids != guided.token_ids
    lm = loaded(patches)
    # Behind the word of no class both states are one, and guidance changes nothing.
    same = [
        polydec.generate(lm, "any", method="mar", options={"guidance": g}, seed=3).token_ids
        for g in (0, 4)
    ]
    assert same[0] == same[1]


def test_a_text_holds_one_patch_behind_the_other(patches):
    lm = loaded(patches)
    made = polydec.generate(lm, "down", seed=1)
    assert len(made.token_ids) == 64 and max(made.token_ids) < 256
    for at, level in enumerate(made.token_ids):
        patch, inside = divmod(at, 4)
        y, x = 2 * (patch // 4) + inside // 2, 2 * (patch % 4) + inside % 2
        assert made.picture.pixels[y, x, 0] == level


def test_a_model_and_its_draft_take_their_own_heads(patches):
    target, draft, _ = patches
    # Two models of one width: the rows of their tables tell them apart.
    heads = [patch_head.load(f"{spec.out}/head") for spec in (target, draft)]
    lm = loaded(patches)
    for head, model in zip(heads, (lm.checkpoint.lm, lm.draft.lm), strict=True):
        head.check_fit(model, None)
    with pytest.raises(ValueError, match="states of width 32"):
        polydec.load(target.out, draft=None, trained=[f"{draft.out}/head"], threads=1)
    none = polydec.load(target.out, draft=None, threads=1)
    with pytest.raises(ValueError, match="mar needs a head that draws patches"):
        polydec.generate(none, "block")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"method": "plain"}, "method is 'plain': .* take mar"),
        ({"sampling": {"temperature": 0.5}}, "temperature is given"),
        ({"sampling": {"top_p": 0.5}}, "top_p is given"),
        ({"logprobs": 1}, "logprobs is given"),
        ({"steer": "cfg"}, "steer is given"),
        ({"best_of": 2}, "best_of is given"),
        ({"method": "mar", "options": {"noise": "perhaps"}}, "noise is 'perhaps'"),
    ],
)
def test_what_needs_laws_of_tokens_is_refused(patches, asked, says):
    lm = loaded(patches)
    if "sampling" in asked:
        asked = {"sampling": lm.sampling_with(**asked["sampling"])}
    with pytest.raises(ValueError, match=says):
        polydec.generate(lm, "block", **asked)


def test_methods_of_patches_need_a_model_of_patches():
    lm = polydec.load("zoo:digits", draft=None, threads=1)
    with pytest.raises(ValueError, match="mar needs a head that draws patches"):
        polydec.generate(lm, "two", method="mar")


def test_drafts_of_small_pictures_need_tokens(patches):
    with pytest.raises(RequestError, match="draws square pictures token by token"):
        view_of_target(patches[0].out, "low_of")


def test_patches_are_values_from_minus_1_to_1_in_rows(tmp_path):
    pixels, labels = draw_pictures(30, 8)
    at = tmp_path / "colours.npz"
    np.savez(at, images=np.repeat(pixels[..., None], 3, -1), labels=labels)
    rows = make_patch_rows(read_pictures(str(at), 8, CLASSES), 2)
    assert rows.value_NLD.shape == (30, 16, 4)
    first = rows.value_NLD[:, 5].numpy()
    wanted = pixels[:, 2:4, 2:4].reshape(30, 4) / 127.5 - 1
    assert np.allclose(first, wanted, atol=1e-6)


def test_the_loss_is_the_bound_of_a_law_that_is_known():
    """Of a head that says one normal law for its only step, the bound is that law's own mean plus what the noise
    hides of the patch."""
    torch.manual_seed(0)
    head = DenoisingHead(DenoisingShape(2, 3, 4, 1, 1))
    for p in head.parameters():
        p.data.zero_()
    head.requires_grad_(False)
    head.leave.bias.data = torch.tensor([0.3, -0.2, 0.5, 0.5])
    clean = torch.rand(50, 2) - 0.5
    rng = torch.Generator().manual_seed(1)
    got = denoising_loss(head, torch.zeros(50, 3), clean, 2, rng)
    low, high = float(head.schedule.low_T[0]), float(head.schedule.high_T[0])
    std = math.exp((low + (high - low) / (1 + math.exp(-0.5))) / 2)
    law = torch.distributions.Normal(torch.tensor([0.3, -0.2]), std)
    kept = float(head.schedule.kept_T[0])
    begun = torch.distributions.kl_divergence(
        torch.distributions.Normal(kept**0.5 * clean, (1 - kept) ** 0.5),
        torch.distributions.Normal(torch.zeros(2), 1.0),
    )
    assert float(got) == pytest.approx(float(-law.log_prob(clean).mean() + begun.mean()), rel=1e-4)


def test_the_loss_of_several_steps_is_the_sum_of_divergences():
    """Each step looked at once: compared with torch's own divergences of the two normal laws of each step."""
    torch.manual_seed(0)
    steps = 3
    head = DenoisingHead(DenoisingShape(1, 2, 4, 1, steps))
    clean, states = torch.rand(400, 1) - 0.5, torch.randn(400, 2)
    got = denoising_loss(head, states, clean, 60, torch.Generator().manual_seed(1)).detach()
    s = head.schedule
    rng = torch.Generator().manual_seed(2)
    total = 0.0
    for step in range(1, steps + 1):
        kept = float(s.kept_T[step - 1])
        noisy = kept**0.5 * clean + (1 - kept) ** 0.5 * torch.randn(400, 1, generator=rng)
        mean, log_std = (x.detach() for x in head(states, noisy, torch.full((400,), step)))
        said = torch.distributions.Normal(mean, log_std.exp())
        a, b = s.mean_T2[step - 1].tolist()
        known = torch.distributions.Normal(
            a * clean + b * noisy, math.exp(float(s.low_T[step - 1]) / 2)
        )
        part = (
            -said.log_prob(clean) if step == 1 else torch.distributions.kl_divergence(known, said)
        )
        total += float(part.mean())
    rest = 1 - float(s.kept_T[-1])
    total += (float(s.kept_T[-1]) * float(clean.square().mean()) + rest - 1 - math.log(rest)) / 2
    assert float(got) == pytest.approx(total, rel=0.15)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"width": 40}, "width is 40: it must be a multiple of 32"),
        ({"drawing_steps": 0}, "drawing_steps is 0"),
        ({"classes": ("p7", "down", "block")}, "classes has 'p7'"),
        ({"classes": ("<mask>", "down", "block")}, "classes has '<mask>'"),
        ({"least_masked": 1.5}, "least_masked is 1.5"),
        ({"classes": ("across", "down")}, "classes has 2 words"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, says):
    images = str(save_pictures(tmp_path / "pictures.npz"))
    with pytest.raises(ValueError, match=says):
        train_patches(
            PatchesSpec(str(tmp_path / "out"), images, **{**SMALL, "steps": 1, **options})
        )


def test_a_seed_names_all_that_is_drawn(patches, tmp_path):
    spec = replace(patches[0], out=str(tmp_path / "a"), steps=4)
    first = train_patches(spec)
    again = train_patches(replace(spec, out=str(tmp_path / "b")))
    assert first["held_out_nats"] == again["held_out_nats"]
