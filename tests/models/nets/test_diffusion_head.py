"""A diffusion head: its schedule, its steps, and trajectories drawn and scored."""

import math
from itertools import pairwise

import pytest
import torch

from polydec.models.nets.denoising import (
    LEAST_STD,
    DenoisingHead,
    DenoisingPaths,
    DenoisingShape,
    GuidedSteps,
    cosine_schedule,
    draw_paths,
    normal_log_density,
    score_paths,
)


def made_network(steps=4, values=3):
    torch.manual_seed(0)
    return DenoisingHead(DenoisingShape(values, 5, 8, 2, steps)).double()


@pytest.mark.parametrize("steps", [1, 2, 8, 100])
def test_a_schedule_keeps_less_and_less_and_bounds_variances(steps):
    s = cosine_schedule(steps)
    kept = [1.0, *s.kept_T.tolist()]
    assert all(a > b > 0 for a, b in pairwise(kept))
    assert (s.low_T <= s.high_T).all()
    assert float(s.low_T[0]) == pytest.approx(2 * math.log(LEAST_STD))
    # Behind the last step a patch is what was guessed: of what was noisy nothing is left.
    assert s.mean_T2[0].tolist() == pytest.approx([1.0, 0.0])


def test_the_mean_of_a_step_is_that_of_the_law_that_knows_the_patch():
    """Of three numbers with a normal law (patch, step s - 1, step s) the middle one is found by the outer two."""
    s = cosine_schedule(6)
    for step in range(2, 7):
        before, after = float(s.kept_T[step - 2]), float(s.kept_T[step - 1])
        share = after / before
        # Given the patch x: a ~ N(sqrt(before) x, 1 - before), b = sqrt(share) a + noise of 1 - share.
        gain = (1 - before) * share**0.5 / (1 - after)
        clean, noisy = s.mean_T2[step - 1].tolist()
        assert noisy == pytest.approx(gain, abs=1e-12)
        assert clean == pytest.approx(before**0.5 - gain * after**0.5, abs=1e-12)
        known = (1 - before) - gain * share**0.5 * (1 - before)
        assert float(s.low_T[step - 1]) == pytest.approx(math.log(known), abs=1e-9)
        assert float(s.high_T[step - 1]) == pytest.approx(math.log(1 - share), abs=1e-9)


def test_a_step_is_a_mean_of_guess_and_noise_with_a_variance_between_bounds():
    network = made_network()
    network.leave.weight.data.zero_()
    network.leave.bias.data = torch.tensor([0.5, -0.2, 0.0, 9.0, 0.0, -9.0], dtype=torch.float64)
    noisy_ND = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    mean, log_std = network(torch.ones(1, 5, dtype=torch.float64), noisy_ND, torch.tensor([3]))
    s = network.schedule
    clean, noisy = s.mean_T2[2].tolist()
    assert mean[0].tolist() == pytest.approx(
        [0.5 * clean + noisy, -0.2 * clean + 2 * noisy, 3 * noisy]
    )
    low, high = float(s.low_T[2]), float(s.high_T[2])
    at = [1 / (1 + math.exp(-x)) for x in (9.0, 0.0, -9.0)]
    assert log_std[0].tolist() == pytest.approx([(low + x * (high - low)) / 2 for x in at])


def test_state_step_and_noise_are_all_seen():
    network = made_network()
    state, noisy, step = torch.zeros(1, 5).double(), torch.zeros(1, 3).double(), torch.tensor([2])
    one = network(state, noisy, step)[1]
    for other in ((state + 1, noisy, step), (state, noisy + 1, step), (state, noisy, step + 1)):
        assert (network(*other)[1] - one).abs().min() > 1e-6


def test_roads_add_their_noises_and_are_scored_as_they_were_drawn():
    network = made_network()
    torch.manual_seed(1)
    state, start = torch.randn(6, 5).double(), torch.randn(6, 3).double()
    noise = torch.randn(6, 4, 3).double()
    paths = draw_paths(network, state, start, noise)
    assert torch.equal(paths.points_NSD[:, 0], start)
    added = (paths.points_NSD[:, 1:] - paths.mean_NTD) / paths.log_std_NTD.exp()
    assert torch.allclose(added, noise)
    # The first mean is of the step with all noise, the last of step 1.
    assert torch.allclose(network(state, start, torch.full((6,), 4))[0], paths.mean_NTD[:, 0])
    last = network(state, paths.points_NSD[:, -2], torch.ones(6, dtype=torch.long))
    assert torch.allclose(last[0], paths.mean_NTD[:, -1])
    scored = score_paths(network, state, paths.points_NSD)
    assert torch.allclose(scored.mean_NTD, paths.mean_NTD, atol=1e-12)
    assert torch.allclose(scored.log_std_NTD, paths.log_std_NTD, atol=1e-12)
    other = score_paths(network, state + 1, paths.points_NSD)
    assert (other.log_density() < paths.log_density()).any()
    assert torch.equal(paths.some_paths(slice(2, 3)).value_ND, paths.value_ND[2:3])


def test_densities_are_those_of_normal_laws():
    torch.manual_seed(2)
    points, mean, log_std = torch.randn(2, 4, 3), torch.randn(2, 3, 3), torch.randn(2, 3, 3)
    points, mean, log_std = points.double(), mean.double(), log_std.double()
    wanted = torch.distributions.Normal(mean, log_std.exp()).log_prob(points[:, 1:])
    assert torch.allclose(normal_log_density(points[:, 1:], mean, log_std), wanted)
    assert torch.allclose(DenoisingPaths(points, mean, log_std).log_density(), wanted.sum((1, 2)))


def test_a_guided_step_moves_its_mean_away_from_no_class_and_keeps_its_deviation():
    network = made_network()
    torch.manual_seed(2)
    told, untold, noisy = torch.randn(3, 4, 5).double().split([1, 1, 1])
    told, untold, noisy = told[0], untold[0], noisy[0, :, :3]
    step = torch.tensor([1, 2, 3, 4])
    strength = torch.tensor([[0.0], [0.5], [2.0], [7.0]]).double()
    mean, log_std = GuidedSteps(network, network.shape)(
        torch.cat([told, untold, strength], 1), noisy, step
    )
    own, own_std = network(told, noisy, step)
    other, _ = network(untold, noisy, step)
    assert torch.allclose(mean, (1 + strength) * own - strength * other)
    assert torch.equal(log_std, own_std) and GuidedSteps(network, network.shape).head is network
    # Guiding the noise that is guessed, as published, gives the same mean: it is linear in it.
    s = network.schedule
    for at, left in enumerate(step.tolist()):
        kept = float(s.kept_T[left - 1])
        clean, more = s.mean_T2[left - 1].tolist()

        def patch_of(mean_D, at=at, clean=clean, more=more):
            return (mean_D - more * noisy[at]) / clean

        def noise_of(patch_D, at=at, kept=kept):
            return (noisy[at] - kept**0.5 * patch_D) / (1 - kept) ** 0.5

        w = float(strength[at])
        guided = (1 + w) * noise_of(patch_of(own[at])) - w * noise_of(patch_of(other[at]))
        patch = (noisy[at] - (1 - kept) ** 0.5 * guided) / kept**0.5
        assert torch.allclose(clean * patch + more * noisy[at], mean[at])
