"""MaskGIT: how many gaps a pass fills, which of them, and what stays as it was given."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import polydec
from picture_models import SIDE, trained_model
from polydec import Ask, Engine
from polydec.base.options import callable_options
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.lab.testing.check_unmasker import check_unmasker
from polydec.lab.testing.enumerate import law_of, text_law_distance
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.loop.events import UnmaskedEvent
from polydec.methods.diffusion.loop.types import UnmaskerView
from polydec.methods.diffusion.recipes import maskgit
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.annealed import (
    CURVES,
    AnnealedUnmasker,
    draw_by_score,
)
from polydec.methods.diffusion.unmaskers.at_random import AtRandomUnmasker

LENGTH = SIDE * SIDE


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = trained_model(tmp_path_factory.mktemp("pictures"), masked=True)[0]
    return polydec.load(str(folder), draft=None, threads=1)


@pytest.mark.parametrize(
    "unmasker",
    [AnnealedUnmasker(2), AnnealedUnmasker(2, 0.0, "linear"), AnnealedUnmasker(1)],
    ids=str,
)
def test_contract(record_counts, unmasker):
    record_counts(check_unmasker(unmasker))


def left_after(unmasker, begun):
    """Gaps that are left after each pass."""
    out, now = [], begun
    step = 0
    while now:
        now = unmasker.gaps_left(begun, step, now)
        out.append(now)
        step += 1
    return out


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize(("steps", "begun"), [(1, 9), (4, 49), (8, 49), (12, 256), (20, 7)])
def test_each_pass_fills_some_gaps_and_leaves_some(curve, steps, begun):
    left = left_after(AnnealedUnmasker(steps, curve=curve), begun)
    assert all(a > b for a, b in pairwise([begun, *left]))
    assert len(left) <= min(steps, begun) and left[-1] == 0
    for step, now in enumerate(left[:-1]):
        wanted = int(begun * CURVES[curve]((step + 1) / steps, begun))
        before = [begun, *left][step]
        assert now == min(max(1, wanted), before - 1)


def test_a_cosine_fills_few_at_first_and_many_at_last():
    left = left_after(AnnealedUnmasker(8), 49)
    filled = [a - b for a, b in pairwise([49, *left])]
    assert filled == sorted(filled) and filled[-1] > 3 * filled[0]
    # cos(pi / 16) and so on, of 49, rounded down.
    assert left == [48, 45, 40, 34, 27, 18, 9, 0]


def test_a_pass_for_each_gap_with_the_linear_curve():
    assert left_after(AnnealedUnmasker(9, curve="linear"), 9) == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_curves_are_those_that_the_recipe_offers():
    option = next(o for o in callable_options(maskgit.build) if o.name == "curve")
    assert all(option.convert_value(name) == name for name in CURVES)


def law_of_answers(unmasker, length=2):
    denoiser = ToyDenoiser(MarkovChainNetwork(1, 3))
    method = DenoisingDecoder(denoiser, unmasker, FullRefresh())
    request = Request((0, 1), length, ignore_eos=True)
    return law_of(lambda rng: answer_one(method, request, rng))


def test_one_step_draws_every_gap_by_itself():
    """The joint law of one pass is the product of its parts."""
    joint = law_of_answers(AnnealedUnmasker(1))
    parts = [{}, {}]
    for text, p in joint.items():
        for at, token in enumerate(text):
            parts[at][token] = parts[at].get(token, 0) + p
    product = {(a, b): p * q for a, p in parts[0].items() for b, q in parts[1].items()}
    assert text_law_distance(joint, product) < 1e-9


def test_much_noise_is_a_random_order():
    steps = 3
    noisy = law_of_answers(AnnealedUnmasker(steps, 1000.0, "linear"), steps)
    even = law_of_answers(AtRandomUnmasker(), steps)
    assert text_law_distance(noisy, even) < 0.01


def test_the_noise_fades_to_nothing():
    unmasker = AnnealedUnmasker(4, 2.0)
    assert [unmasker.noise_at(step) for step in range(4)] == [1.5, 1.0, 0.5, 0.0]


def test_the_heat_of_draws_falls_and_leaves_scores_alone():
    """The last pass draws the likeliest tokens; the first one draws nearly evenly, and is as sure as the model's law is."""
    unmasker = AnnealedUnmasker(4, 0.0, heat=8.0)
    logw_RV = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    look = UnmaskerView((7, None, None), range(1, 3), (1, 2), logw_RV)
    assert AnnealedUnmasker(4).cooled_view(look, 0) is look
    for step, heat in enumerate((6.0, 4.0, 2.0, 0.001)):
        heated = unmasker.cooled_view(look, step)
        assert torch.allclose(heated.shaped_RV, (logw_RV / heat).log_softmax(-1))
        assert torch.equal(heated.logp_RV, look.logp_RV)
    # By the request's own rules first.
    cooler = replace(look, shapers=(TemperatureRule(0.5),))
    want = (logw_RV / 0.5 / 6.0).log_softmax(-1)
    assert torch.allclose(unmasker.cooled_view(cooler, 0).shaped_RV, want)


def test_no_noise_takes_the_surest():
    logp = torch.tensor([-1.0, -0.1, -3.0, -0.5])
    assert draw_by_score(logp, 0.0, 2, Rng.of_choice(0)) == [1, 3]


def test_noise_draws_by_the_tempered_law():
    """The first of the chosen has probability softmax(logp / noise)."""
    logp = torch.tensor([-1.0, -0.1, -3.0])
    want = torch.softmax(logp.double() / 2.0, -1)
    count = [0, 0, 0]
    for seed in range(2000):
        count[draw_by_score(logp, 2.0, 1, Rng.of_choice(seed))[0]] += 1
    for hits, p in zip(count, want.tolist()):
        assert abs(hits / 2000 - p) < 4 * (p * (1 - p) / 2000) ** 0.5


def test_as_many_are_chosen_as_are_asked_for_whatever_their_weights():
    logp = torch.tensor([0.0, -5000.0, -4000.0, -6000.0])
    assert draw_by_score(logp, 0.5, 3, Rng.of_choice(1)) == [0, 2, 1]


def passes_of(lm, **options):
    """(positions that each pass filled, the completion)."""
    seen = []
    engine = Engine(lm)
    given = options.pop("infill", None)
    ask = Ask("block", method="maskgit", options=options, seed=4, infill=given)
    ticket = engine.submit(
        ask, on=lambda e: seen.append(e) if isinstance(e, UnmaskedEvent) else None
    )
    return seen, engine.run([ticket])[0]


def test_a_request_takes_as_many_passes_as_steps(lm):
    seen, made = passes_of(lm, steps=5)
    assert len(seen) == 5 and made.metrics["tokens_per_pass"] == LENGTH / 5
    left = [LENGTH, *left_after(AnnealedUnmasker(5), LENGTH)]
    assert [len(e.position) for e in seen] == [a - b for a, b in pairwise(left)]


def test_the_class_is_never_filled(lm):
    seen, _ = passes_of(lm, steps=3)
    assert min(min(e.position) for e in seen) >= 1


def test_given_tokens_stay_as_they_are(lm):
    """Editing: of a canvas with given tokens only the gaps are written, and only they are counted."""
    given = [at % 3 if at < 10 else None for at in range(LENGTH)]
    seen, made = passes_of(lm, steps=4, infill=given)
    assert list(made.token_ids[:10]) == given[:10]
    written = sorted(p for e in seen for p in e.position)
    assert written == list(range(11, LENGTH + 1))
    assert len(seen) == len(left_after(AnnealedUnmasker(4), LENGTH - 10))


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"steps": 0}, "steps"), ({"noise": -1.0}, "noise"), ({"curve": "cubist"}, "curve")],
)
def test_values_out_of_range_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        AnnealedUnmasker(**fields)


def test_texts_are_a_function_of_the_seed(lm):
    asked = {"method": "maskgit", "options": {"steps": 4}}
    one, other = (polydec.generate(lm, "down", seed=s, **asked).token_ids for s in (1, 2))
    assert one == polydec.generate(lm, "down", seed=1, **asked).token_ids != other


def cooled_look(logp=(-1.0, -2.0, -3.0)):
    logw = torch.tensor([logp, logp], dtype=torch.float64)
    return UnmaskerView((0, None, None), range(1, 3), (1, 2), logw)


def test_draws_cool_down_and_scores_stay():
    unmasker = AnnealedUnmasker(4, coolest=0.5)
    look = cooled_look()
    heats = []
    for step in range(4):
        cooled = unmasker.cooled_view(look, step)
        heat = 0.5 + 0.5 * (1 - ((step + 1) / 4) ** 0.5)
        want = torch.softmax(look.logw_RV / heat, -1)
        torch.testing.assert_close(cooled.shaped_RV.exp(), want)
        torch.testing.assert_close(cooled.token_confidence((0, 1)), look.token_confidence((0, 1)))
        heats.append(heat)
    assert heats[-1] == 0.5 and heats == sorted(heats, reverse=True)
    assert AnnealedUnmasker(4).cooled_view(look, 3) is look
    with pytest.raises(ValueError, match="coolest"):
        AnnealedUnmasker(coolest=0.0)


def test_a_pass_draws_at_its_temperature():
    cold = AnnealedUnmasker(1, coolest=0.01)
    drawn = {
        cold.choose_edit((2, 0), cooled_look(), Rng.of_choice(seed))[0].write for seed in range(20)
    }
    assert drawn == {((1, 0), (2, 0))}
    warm = AnnealedUnmasker(1)
    drawn = {
        warm.choose_edit((2, 0), cooled_look(), Rng.of_choice(seed))[0].write for seed in range(20)
    }
    assert len(drawn) > 1
