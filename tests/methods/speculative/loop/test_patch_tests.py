"""Tests of drafted patches: the exact one leaves the target's law as it is, the published one is what its paper says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from patch_toys import made_head
from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.methods.speculative.loop.patch_tests import (
    AlignedPatchTest,
    DraftedPatches,
    ExactPatchTest,
    LastStepLaws,
    acceptance_chance,
    residual_chance,
)
from polydec.models.learned.kinds.patch_head import PathDraw
from polydec.models.nets.denoising import DenoisingPaths, draw_paths, score_paths

STATE = torch.tensor([[3.0, 1.5, 7.0, 0.0]], dtype=torch.float64)
OTHER = torch.tensor([[9.0, 4.5, 7.0, 0.0]], dtype=torch.float64)
EXACT = ExactPatchTest()


class RecordedRng:
    """Says of every drafted patch that it stands, and notes how likely that was."""

    def __init__(self, stands=lambda at: True):
        self.chances, self.stands = [], stands

    def child_stream(self, *names):
        return self

    def draw_bernoulli(self, chance):
        self.chances.append(chance)
        return self.stands(len(self.chances) - 1)


def drafted_of(head, state_1H, points_NSD, sizes=None):
    """Trajectories as the draft would have gone them."""
    state_NH = state_1H.expand(len(points_NSD), -1)
    paths = score_paths(head.step_law, state_NH, points_NSD)
    noise_NTD = (points_NSD[:, 1:] - paths.mean_NTD) / paths.log_std_NTD.exp()
    return in_sets(head, state_NH, noise_NTD, paths, sizes)


def in_sets(head, state_NH, noise_NTD, paths, sizes=None):
    """A draft of such sets; without sizes each patch is one."""
    N = len(state_NH)
    return DraftedPatches(head, state_NH, noise_NTD, paths, tuple(range(N)), sizes or (1,) * N)


def behind(head, state_1H=STATE):
    T, D = head.shape.steps, head.shape.values
    return PathDraw(state_1H, torch.zeros(1, D).double(), torch.zeros(1, T, D).double())


def settled(test, head, drafted, rng, state_1H=STATE):
    states = state_1H.expand(len(drafted) + 1, -1)
    made = test.settle_patches(head, drafted, states, behind(head, state_1H), rng)
    return run_coroutines([made])[0]


def normal_density(x, mean, std):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


class TriedRng:
    """Makes the first proposal of a redraw a trajectory of these numbers, stands it on this number, and then stops."""

    def __init__(self, row, stands):
        self.row, self.uniform, self.turns = torch.tensor(row, dtype=torch.float64), stands, []

    def child_stream(self, *names):
        self.turns += [x for x in names if isinstance(x, int)]
        if self.turns[-1:] == [1]:
            raise StopIteration
        return self

    def normal_row(self, size):
        return self.row

    def uniform_row(self, size):
        return np.array([self.uniform])


def stands_at_first(own, other, row, uniform, told=(STATE, OTHER)):
    """Whether a proposal stands where this number between 0 and 1 is drawn."""
    rng = TriedRng(row, uniform)
    made = EXACT.redraw_patch(own, other, *told, rng)
    try:
        return run_coroutines([made])[0]
    except (StopIteration, RuntimeError):
        return None


def told_with_guidance(state_1H, strength):
    """What a guided head is told: a state, one without a class, and the strength."""
    untold_1H = state_1H.flip(-1) * 0.7
    return torch.cat([state_1H, untold_1H, torch.tensor([[strength]]).double()], 1)


def guided_law(head, told, start):
    """Mean and deviation of the only step of a head, by the formula of guidance."""
    state, untold, strength = told[:, :4], told[:, 4:8], float(told[0, 8])
    begun = torch.tensor([[start]], dtype=torch.float64)
    with torch.no_grad():
        mean, log_std = head.network(state, begun, torch.tensor([1]))
        other, _ = head.network(untold, begun, torch.tensor([1]))
    return float((1 + strength) * mean - strength * other), float(log_std.exp())


@pytest.mark.parametrize(
    ("seed", "moved", "strength"),
    [(1, 0.5, None), (3, 1.0, None), (4, 0.2, None), (1, 0.5, 0.5), (3, 1.0, 2.0)],
)
def test_the_exact_mode_leaves_a_normal_law_as_it_is(seed, moved, strength):
    """A head of one step in one dimension: what comes out has the density of the target, to 1e-9; under guidance that of
    the guided target.

    The chances are the code's own: of acceptance those that it draws with, of a proposal those at which
    its decision changes.
    """
    own = made_head(seed, values=1, steps=1)
    other = made_head(seed + 50, own, values=1, steps=1, moved=moved)
    told = STATE, OTHER
    if strength is not None:
        own, other = own.guided_head, other.guided_head
        told = tuple(told_with_guidance(state, strength) for state in told)
    start = 0.3
    x = np.arange(-9.0, 9.0, 0.002)
    points = torch.tensor(np.stack([np.full_like(x, start), x], 1))[..., None]
    drafted = drafted_of(other, told[1], points)
    rng = RecordedRng()
    assert settled(EXACT, own, drafted, rng, told[0]).leading_patches == len(x)
    accept = np.array(rng.chances)
    # Without guidance the same formula at strength 0.
    laws = told if strength is not None else tuple(told_with_guidance(s, 0.0) for s in told)
    mean, std = guided_law(own, laws[0], start)
    p, q = normal_density(x, mean, std), normal_density(x, *guided_law(other, laws[1], start))
    # Where no trajectory of either goes, both densities round to 0.
    stands = np.maximum(0.0, 1 - q / np.maximum(p, 1e-300))
    # The decision of the code changes at this chance, on both sides by far less than 1e-9.
    for at in range(0, len(x), 300):
        row = [start, (x[at] - mean) / std]
        if 1e-6 < stands[at] < 1 - 1e-6:
            assert stands_at_first(own, other, row, stands[at] - 1e-11, told) is not None
            assert stands_at_first(own, other, row, stands[at] + 1e-11, told) is None
        elif q[at] > 1.001 * p[at] > 1e-200:
            assert stands_at_first(own, other, row, 1e-15, told) is None
    step = 0.002
    refused = 1 - (q * accept).sum() * step
    assert 0.05 < refused < 0.95
    made = q * accept + refused * p * stands / ((p * stands).sum() * step)
    assert np.abs(made - p).max() < 1e-9


def test_the_exact_mode_leaves_roads_of_two_steps_as_they_are():
    """As above over a plane: both points of a trajectory; what comes out is summed over the first one."""
    own = made_head(1, values=1, steps=2)
    other = made_head(7, own, values=1, steps=2, moved=0.6)
    start, step = -0.4, 0.03
    axis = np.arange(-7.0, 7.0, step)
    first, last = (g.ravel() for g in np.meshgrid(axis, axis, indexing="ij"))
    points = torch.tensor(np.stack([np.full_like(first, start), first, last], 1))[..., None]
    drafted = drafted_of(other, OTHER, points)
    rng = RecordedRng()
    settled(EXACT, own, drafted, rng)
    accept = np.array(rng.chances)
    log_p = score_paths(own.network, STATE.expand(len(first), -1), points).log_density()
    log_q = drafted.paths.log_density()
    p, q = log_p.exp().numpy(), log_q.exp().numpy()
    refused = 1 - (q * accept).sum() * step**2
    assert 0.05 < refused < 0.95
    left = p * residual_chance(log_p - log_q).numpy()
    made = q * accept + refused * left / (left.sum() * step**2)
    made, wanted = (x.reshape(len(axis), -1).sum(0) * step for x in (made, p))
    assert np.abs(made - wanted).max() < 1e-9
    # Nothing of this holds for what is drawn from the target where a draft was refused.
    wrong = (q * accept + refused * p).reshape(len(axis), -1).sum(0) * step
    assert np.abs(wrong - wanted).max() > 1e-3


def test_what_is_drawn_behind_a_refused_road_has_the_residual_s_law():
    """2,000 redraws of one dimension beside (p - q)+, renormalised: the distance of distribution functions is below
    0.0436, which a right sampler passes with probability 0.999."""
    own = made_head(1, values=1, steps=1)
    other = made_head(51, own, values=1, steps=1, moved=0.5)
    n = 2000

    async def redrawn(seed):
        return await EXACT.redraw_patch(own, other, STATE, OTHER, Rng.of_choice(seed))

    made = np.sort([float(x) for x in run_coroutines([redrawn(seed) for seed in range(n)])])
    # The beginning is drawn as well: the residual of pairs, summed over beginnings.
    axis = torch.arange(-6.0, 6.0, 0.02, dtype=torch.float64)
    begin, end = (g.reshape(-1, 1) for g in torch.meshgrid(axis, axis, indexing="ij"))
    points = torch.stack([begin, end], 1)
    log_p = score_paths(own.network, STATE.expand(len(end), -1), points).log_density()
    log_q = score_paths(other.network, OTHER.expand(len(end), -1), points).log_density()
    left = (log_p.exp() - log_q.exp()).clamp_min(0) * (-0.5 * begin[:, 0].square()).exp()
    density = left.view(len(axis), -1).sum(0).numpy()
    cdf = np.interp(made, axis.numpy(), np.cumsum(density) / density.sum())
    far = np.abs(cdf - (np.arange(n) + 0.5) / n).max()
    assert far < 1.95 / math.sqrt(n)
    # The target's own law lies far from it.
    whole = (log_p.exp() * (-0.5 * begin[:, 0].square()).exp()).view(len(axis), -1).sum(0).numpy()
    other_cdf = np.interp(made, axis.numpy(), np.cumsum(whole) / whole.sum())
    assert np.abs(other_cdf - (np.arange(n) + 0.5) / n).max() > 3 * 1.95 / math.sqrt(n)


class RefusingRng(RecordedRng):
    """The same, with streams of its own for what is drawn again."""

    def child_stream(self, *names):
        return Rng.of_choice(0).child_stream(*names) if names[0] == "redraw" else self


@pytest.mark.parametrize("test", [EXACT, AlignedPatchTest()])
def test_what_stands_ends_before_the_first_refused_patch(test):
    own, other = made_head(1), made_head(2, made_head(1), moved=0.3)
    torch.manual_seed(0)
    drafted = drafted_of(other, OTHER, torch.randn(4, 4, 2).double())

    rng = RefusingRng(stands=lambda at: at < 2)
    made = settled(test, own, drafted, rng)
    assert (
        made.stands == (True, True, False) and made.leading_patches == 2 and len(rng.chances) == 3
    )
    assert torch.equal(made.value_KD[:2], drafted.paths.value_ND[:2])
    assert len(made.value_KD) == 3


def test_all_refused_patches_are_drawn_again_at_once():
    own, other = made_head(1), made_head(2, made_head(1), moved=0.3)
    torch.manual_seed(0)
    drafted = drafted_of(other, OTHER, torch.randn(4, 4, 2).double())
    rng = RefusingRng(stands=lambda at: at in (0, 3))
    made = settled(AlignedPatchTest(parallel=True), own, drafted, rng)
    assert made.stands == (True, False, False, True) and made.leading_patches == 1
    same = (made.value_KD == drafted.paths.value_ND).all(-1)
    # No patch follows: what the target said of it was said behind the draft.
    assert same.tolist() == [True, False, False, True]


def test_a_set_is_whole_and_later_ones_fall_with_it():
    """Of sets of 2, 3 and 1 patches the second patch of the second one is refused."""
    own, other = made_head(1), made_head(2, made_head(1), moved=0.3)
    torch.manual_seed(0)
    drafted = drafted_of(other, OTHER, torch.randn(6, 4, 2).double(), (2, 3, 1))
    assert drafted.set_ranges == [range(2), range(2, 5), range(5, 6)]
    # Patches of a set do not see one another: the exact test asks each of them.
    rng = RefusingRng(stands=lambda at: at != 3)
    made = settled(EXACT, own, drafted, rng)
    assert made.stands == (True, True, True, False, True) and len(made.value_KD) == 5
    same = (made.value_KD == drafted.paths.value_ND[:5]).all(-1)
    assert same.tolist() == [True, True, True, False, True]
    # As published what follows the refused patch is discarded: here the target's own ends the set.
    rng = RefusingRng(stands=lambda at: at != 3)
    made = settled(AlignedPatchTest(), own, drafted, rng)
    assert made.stands == (True, True, True, False) and len(made.value_KD) == 5
    aligned = PathDraw(STATE.expand(6, -1), drafted.paths.points_NSD[:, 0], drafted.noise_NTD)
    assert torch.allclose(made.value_KD[4], draw_paths(own.network, *aligned).value_ND[4])
    rng = RefusingRng(stands=lambda at: at != 3)
    made = settled(AlignedPatchTest(parallel=True), own, drafted, rng)
    assert len(made.stands) == 6 and len(made.value_KD) == 6


def test_all_that_stands_is_followed_by_the_target_s_next_patch():
    own = made_head(1)
    torch.manual_seed(0)
    drafted = drafted_of(own, STATE, torch.randn(2, 4, 2).double())
    made = settled(EXACT, own, drafted, RecordedRng())
    assert made.stands == (True, True)
    query = behind(own)
    assert torch.allclose(made.value_KD[2:], draw_paths(own.network, *query).value_ND)


def test_the_chances_of_both_kinds():
    assert acceptance_chance(0.5) == 1 and acceptance_chance(math.log(0.25)) == pytest.approx(0.25)
    ratio = torch.tensor([4.0, 1.0, 0.5, 1e300]).double().log()
    assert residual_chance(ratio).tolist() == pytest.approx([0.75, 0.0, 0.0, 1.0])


LAWS = LastStepLaws(
    torch.tensor([0.5, 0.0]).double(),
    torch.tensor([0.1, 0.2]).double().log(),
    torch.tensor([0.0, 0.1]).double(),
    torch.tensor([0.2, 0.2]).double().log(),
    0.3,
    2.0,
)


def test_the_ends_are_compared_under_wider_laws_and_with_the_factor():
    at = torch.tensor([0.2, -0.1]).double()
    own = normal_density(0.2, 0.5, 0.2) * normal_density(-0.1, 0.0, 0.4)
    draft = normal_density(0.2, 0.0, 0.4) * normal_density(-0.1, 0.1, 0.4)
    assert float(LAWS.log_ratio(at)) == pytest.approx(0.3 + math.log(own / draft))


def hand_made_roads():
    """The target's and the draft's trajectories of three steps to one patch."""
    points = torch.zeros(1, 4, 2).double()
    mean = torch.zeros(1, 3, 2).double()
    own = torch.tensor([[[0.5, 0.4], [0.3, 0.2], [0.1, 0.1]]]).double().log()
    draft = torch.tensor([[[0.4, 0.4], [0.2, 0.2], [0.3, 0.1]]]).double().log()
    return DenoisingPaths(points, mean, own), DenoisingPaths(points, mean, draft)


def test_of_aligned_steps_the_deviations_are_left():
    own, draft = hand_made_roads()
    # All steps but the last: 0.5 * 0.4 * 0.3 * 0.2 over 0.4 * 0.4 * 0.2 * 0.2, and the density is one over that.
    ratio = math.log(0.012 / 0.0064)
    assert AlignedPatchTest().last_laws(own, draft, 0).log_factor == pytest.approx(-ratio)
    doubled = AlignedPatchTest(doubled=True).last_laws(own, draft, 0)
    assert doubled.log_factor == pytest.approx(2 * ratio)
    assert doubled.log_std_D.exp().tolist() == pytest.approx([0.1, 0.1])
    assert AlignedPatchTest().last_laws(own, own, 0).log_factor == 0
    assert AlignedPatchTest(widen=7).last_laws(own, draft, 0).widen == 7


def test_the_target_goes_from_the_draft_s_beginning_by_its_noises():
    """As the draft is the target, it stands for sure; without the same noise it would hardly ever."""
    own = made_head(1)
    torch.manual_seed(0)
    start, noise = torch.randn(6, 2).double(), torch.randn(6, 3, 2).double()
    noise[:, -1] = 0
    paths = draw_paths(own.network, STATE.expand(6, -1), start, noise)
    drafted = in_sets(own, STATE.expand(6, -1), noise, paths)
    rng = RecordedRng()
    assert settled(AlignedPatchTest(widen=0.5), own, drafted, rng).leading_patches == 6
    assert rng.chances == pytest.approx([1.0] * 6)
    elsewhere = in_sets(own, STATE.expand(6, -1), noise.roll(1, 0), paths)
    far = RecordedRng()
    settled(AlignedPatchTest(widen=0.5), own, elsewhere, far)
    assert min(far.chances) < 0.9


def test_a_refused_patch_is_drawn_again_from_the_last_law_alone():
    test = AlignedPatchTest(retries=50)
    # Laws that lie near each other: most tries fail.
    laws = replace(LAWS, draft_mean_D=LAWS.mean_D + 0.1, log_factor=0.0)
    taken = []
    for seed in range(12):
        rng = Rng.of_choice(seed)
        noise = rng.child_stream("noise").normal_row(100).view(50, 2)
        tried = laws.mean_D + laws.log_std_D.exp() * noise
        stands = torch.tensor(rng.child_stream("stands").uniform_row(50)) < residual_chance(
            laws.log_ratio(tried)
        )
        taken.append(int(stands.nonzero()[0, 0]))
        assert torch.equal(test.redraw_patch(laws, rng), tried[taken[-1]][None])
    assert len(set(taken)) > 2


def test_where_no_try_stands_the_last_one_is_taken():
    same = LastStepLaws(LAWS.mean_D, LAWS.log_std_D, LAWS.mean_D, LAWS.log_std_D, 0.0, 2.0)
    rng = Rng.of_choice(3)
    for retries in (1, 5):
        noise = rng.child_stream("noise").normal_row(2 * retries).view(-1, 2)
        made = AlignedPatchTest(retries=retries).redraw_patch(same, rng)
        assert torch.equal(made, (LAWS.mean_D + LAWS.log_std_D.exp() * noise[-1])[None])


@pytest.mark.parametrize(
    ("fields", "says"), [({"widen": 0.0}, "widen is 0.0"), ({"retries": 0}, "retries is 0")]
)
def test_values_out_of_range_are_refused(fields, says):
    with pytest.raises(RequestError, match=says):
        AlignedPatchTest(**fields)
