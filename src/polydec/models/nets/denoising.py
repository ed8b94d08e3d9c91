"""A network that draws a patch of a picture as a vector, by a few Gaussian steps from noise (a diffusion head).

The same module is trained and served.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log, pi

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

LEAST_STD = 0.02
"""How narrow the last step may become: values of patches lie in -1 to 1, and a grey level is 0.008 wide."""

MOST_ADDED = 0.999
"""Share of noise that a step adds at most: the first one begins at noise, and nearly nothing is left of a patch there."""


@dataclass(frozen=True)
class DenoisingShape:
    """Sizes of a diffusion head.

    Attributes:
        values: Numbers of a patch.
        width: Size of the states that it is told.
        units: Size of its own states.
        layers: Its layers, 0 or more.
        steps: Gaussian steps from noise to a patch, 1 or more.
    """

    values: int
    width: int
    units: int
    layers: int
    steps: int


@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    """How much of a patch is left after so many steps of noise; all float64, of the steps 1 to T in this order.

    Attributes:
        kept_T: The share of the patch's variance that is left.
        mean_T2: What the mean of the step before is made of: so much of the patch, so much of the noisy one.
        low_T: The lowest log-variance of a step that removes noise.
        high_T: The highest one.
    """

    kept_T: Tensor
    mean_T2: Tensor
    low_T: Tensor
    high_T: Tensor


def cosine_schedule(steps: int) -> NoiseSchedule:
    """The cosine schedule, over few steps.

    Args:
        steps: T, 1 or more.

    Returns:
        The schedule. The posterior of a step lies between the two log-variances; the last step, behind
        which a patch is known, may become as narrow as `LEAST_STD`.

    Source: Nichol and Dhariwal, "Improved denoising diffusion probabilistic models" (2021): the schedule,
    and a variance that is learned between these two.
    """
    kept = [1.0]
    for step in range(1, steps + 1):
        curve = cos((step / steps + 0.008) / 1.008 * pi / 2) ** 2
        before = cos(((step - 1) / steps + 0.008) / 1.008 * pi / 2) ** 2
        # What one step keeps, bounded so that a little is left of a patch at the end.
        kept.append(kept[-1] * max(1 - MOST_ADDED, curve / before))
    # What a step that removes noise does follows from Bayes' rule for normal laws.
    means = list[tuple[float, float]]()
    lows = list[float]()
    highs = list[float]()
    for step in range(1, steps + 1):
        share = kept[step] / kept[step - 1]
        added = 1 - share
        clean = kept[step - 1] ** 0.5 * added / (1 - kept[step])
        noisy = share**0.5 * (1 - kept[step - 1]) / (1 - kept[step])
        means.append((clean, noisy))
        # The variance of the step before, where the patch is known; behind the last step that is 0.
        known = added * (1 - kept[step - 1]) / (1 - kept[step])
        # No step is so narrow that a density explodes where pictures have one colour.
        lows.append(log(max(known, LEAST_STD**2)))
        highs.append(log(max(added, known, LEAST_STD**2)))
    return NoiseSchedule(
        *(torch.tensor(x, dtype=torch.float64) for x in (kept[1:], means, lows, highs))
    )


class ModulatedLayer(nn.Module):
    """A residual layer of an MLP whose norm is scaled and shifted by what the head is told (AdaLN)."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.modulate = nn.Linear(units, 3 * units)
        self.enter = nn.Linear(units, units)
        self.leave = nn.Linear(units, units)

    def forward(self, x_NU: Tensor, told_NU: Tensor) -> Tensor:
        """Add what the layer makes.

        Args:
            x_NU: Own states, shape ``[N, U]``.
            told_NU: State and step, shape ``[N, U]``.

        Returns:
            The states after it.
        """
        # The norm has no weights of its own: what is told decides them.
        shift_NU, scale_NU, gate_NU = self.modulate(told_NU).chunk(3, -1)
        normed_NU = layer_norm(x_NU, x_NU.shape[-1:]) * (1 + scale_NU) + shift_NU
        return x_NU + gate_NU * self.leave(silu(self.enter(normed_NU)))


class DenoisingHead(nn.Module):
    """The law of a patch behind a state: from noise, step by step, each step a Gaussian whose mean and
    whose deviation the network says. It also makes of a patch the vector that a model reads in its place.

    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024): an MLP
    that is told the state, for each token of its own.
    """

    def __init__(self, shape: DenoisingShape) -> None:
        super().__init__()
        self.shape = shape
        self.schedule = cosine_schedule(shape.steps)
        units = shape.units
        # Not of the head's law: what the model reads where a patch stands.
        self.embed = nn.Linear(shape.values, shape.width)
        self.see = nn.Linear(shape.width, units)
        self.step = nn.Embedding(shape.steps, units)
        self.enter = nn.Linear(shape.values, units)
        self.layers = nn.ModuleList(ModulatedLayer(units) for _ in range(shape.layers))
        # The patch that it guesses, and where between its bounds each variance lies.
        self.leave = nn.Linear(units, 2 * shape.values)

    def forward(self, state_NH: Tensor, noisy_ND: Tensor, step_N: Tensor) -> tuple[Tensor, Tensor]:
        """The law of one step.

        Args:
            state_NH: What the model says of the patch, shape ``[N, H]``.
            noisy_ND: The patch with noise, shape ``[N, D]``.
            step_N: How many steps are left, this one counted, 1 to T.

        Returns:
            Means of what stands there a step later, and log-deviations, both of shape ``[N, D]``.
        """
        # Steps are counted from 1, tables from 0.
        at_N = step_N - 1
        told_NU = silu(self.see(state_NH) + self.step(at_N))
        x_NU = self.enter(noisy_ND)
        for layer in self.layers:
            x_NU = layer(x_NU, told_NU)
        guess_ND, between_ND = self.leave(silu(x_NU + told_NU)).chunk(2, -1)
        s = self.schedule
        # Small tables of numbers, in the network's own type.
        clean_N1, noisy_N1 = s.mean_T2[at_N].to(noisy_ND).unsqueeze(1).unbind(-1)
        low_N1 = s.low_T[at_N].to(noisy_ND)[:, None]
        high_N1 = s.high_T[at_N].to(noisy_ND)[:, None]
        # The mean of the step before, as if the guess were the patch.
        mean_ND = clean_N1 * guess_ND + noisy_N1 * noisy_ND
        log_variance_ND = low_N1 + between_ND.sigmoid() * (high_N1 - low_N1)
        return mean_ND, log_variance_ND / 2


@dataclass(frozen=True, eq=False)
class GuidedSteps:
    """Steps whose mean is moved away from what a picture of no class would be (classifier-free guidance).

    What it is told of a patch is the state behind the class, the one without it, and the strength w of
    the guidance: rows of 2 H + 1 numbers. A step's mean is (1 + w) times the first one's less w times
    the second one's, and its deviation is that of the first.

    Attributes:
        head: The head, which is asked twice.
        shape: Its sizes.

    Exact: law, of the guided steps: they are Gaussian, so a patch has a density.
    Reduces to: `head` at strength 0, or where both states are one.
    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024): noise is
    guided and variances are not. A step's mean is linear in the noise that is guessed, so means are
    guided alike.
    """

    head: DenoisingHead
    shape: DenoisingShape

    def __call__(self, told_NG: Tensor, noisy_ND: Tensor, step_N: Tensor) -> tuple[Tensor, Tensor]:
        """The law of one step.

        Args:
            told_NG: Both states and the strength, shape ``[N, 2 H + 1]``.
            noisy_ND: The patch with noise, shape ``[N, D]``.
            step_N: How many steps are left, this one counted, 1 to T.

        Returns:
            Means of what stands there a step later, and log-deviations, both of shape ``[N, D]``.
        """
        H = self.shape.width
        # Each row has a strength of its own, as it may grow from set to set.
        told_NH, untold_NH, strength_N1 = told_NG.split([H, H, 1], -1)
        mean_ND, log_std_ND = self.head(told_NH, noisy_ND, step_N)
        untold_ND, _ = self.head(untold_NH, noisy_ND, step_N)
        return mean_ND + strength_N1 * (mean_ND - untold_ND), log_std_ND


StepLaw = DenoisingHead | GuidedSteps
"""Says the law of each step from noise to a patch."""


@dataclass(frozen=True, eq=False)
class DenoisingPaths:
    """Trajectories from noise to patches, and the laws of their steps under one head. Float64.

    Attributes:
        points_NSD: Where each trajectory passes, from noise to the patch, shape ``[N, T + 1, D]``.
        mean_NTD: Means of the steps, in the order of the trajectory, shape ``[N, T, D]``.
        log_std_NTD: Log-deviations of them.
    """

    points_NSD: Tensor
    mean_NTD: Tensor
    log_std_NTD: Tensor

    @property
    def value_ND(self) -> Tensor:
        """The patches: where the trajectories end."""
        return self.points_NSD[:, -1]

    def log_density(self) -> Tensor:
        """Of each trajectory behind its noise, shape ``[N]``."""
        steps_NTD = normal_log_density(self.points_NSD[:, 1:], self.mean_NTD, self.log_std_NTD)
        return steps_NTD.sum((1, 2))

    def some_paths(self, rows: slice) -> DenoisingPaths:
        """Those of some rows."""
        return DenoisingPaths(self.points_NSD[rows], self.mean_NTD[rows], self.log_std_NTD[rows])


def normal_log_density(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-densities of independent normal laws.

    Args:
        x: Where they are looked at.
        mean: Their means, of a shape that broadcasts to that of `x`.
        log_std: Their log-deviations, likewise.

    Returns:
        The log-density of each number, in the shape of `x`.
    """
    return -0.5 * ((x - mean) / log_std.exp()).square() - log_std - 0.5 * log(2 * pi)


@torch.no_grad()
def draw_paths(
    head: StepLaw, state_NH: Tensor, start_ND: Tensor, noise_NTD: Tensor
) -> DenoisingPaths:
    """Go from noise to patches, in as many calls of the head as there are steps.

    Args:
        head: The head, in float64.
        state_NH: What it is told of the patches, a row for each.
        start_ND: Where the trajectories begin, shape ``[N, D]``.
        noise_NTD: What is added to the mean of each step, in deviations; nothing: 0.

    Returns:
        The trajectories.
    """
    points = [start_ND]
    means = list[Tensor]()
    deviations = list[Tensor]()
    for done in range(head.shape.steps):
        left_N = torch.full((len(state_NH),), head.shape.steps - done)
        mean_ND, log_std_ND = head(state_NH, points[-1], left_N)
        # Each step waits for the one before: this is what takes a head its time.
        points.append(mean_ND + log_std_ND.exp() * noise_NTD[:, done])
        means.append(mean_ND)
        deviations.append(log_std_ND)
    return DenoisingPaths(*(torch.stack(x, 1) for x in (points, means, deviations)))


@torch.no_grad()
def score_paths(head: StepLaw, state_NH: Tensor, points_NSD: Tensor) -> DenoisingPaths:
    """Laws of the steps of trajectories that somebody else went, in one call of the head.

    Args:
        head: The head, in float64.
        state_NH: What it is told of the patches, a row for each.
        points_NSD: The trajectories, shape ``[N, T + 1, D]``.

    Returns:
        The same trajectories under this head.
    """
    N, S, D = points_NSD.shape
    T = S - 1
    # A trajectory is known, so no step waits for the one before.
    left_M = torch.arange(T, 0, -1).repeat(N)
    mean_MD, log_std_MD = head(
        state_NH.repeat_interleave(T, 0), points_NSD[:, :-1].reshape(N * T, D), left_M
    )
    return DenoisingPaths(points_NSD, mean_MD.view(N, T, D), log_std_MD.view(N, T, D))
