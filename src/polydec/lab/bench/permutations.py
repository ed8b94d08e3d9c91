"""A permutation of bits, learned from one-hot inputs alone: how many networks must vote until every
input is answered right?

Source: Exact learning of permutations for nonzero binary inputs with logarithmic training size and
quadratic ensemble complexity, 2025. Width, step size and threshold are ours: the paper proves its
bound for networks of infinite width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import acos, pi, sqrt
from typing import Any

import torch
from torch import Tensor

from polydec.lab.bench.intervals import shared_trials_interval, student_interval

RATE = 0.3
ROUNDS = 40
"""Step size, and steps of gradient descent: the slowest direction is halved by each, so what is
left is 1e-12 of it."""

VOTES = tuple(2**i for i in range(10))
"""How many networks vote."""


@dataclass(frozen=True)
class TwoLayerNetworks:
    """Two-layer ReLU networks of NTK scale, sqrt(2 / width) W2 relu(W1 x), each trained on the k
    one-hot inputs alone.

    Attributes:
        k: Bits of an input.
        width: Hidden units of a network.
        count: How many networks there are.
        seed: Names the permutation and the initial weights.
    """

    k: int
    width: int
    count: int
    seed: int

    def learned_permutation(self) -> Tensor:
        """The permutation to be learned, shape ``[K]``: output i is input permutation[i]."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(self.k, generator=generator)

    def trained_outputs(self, input_XK: Tensor) -> Tensor:
        """Train the networks and apply each to the inputs.

        They are trained one after the other, so the memory in use is that of one.

        Args:
            input_XK: Inputs of 0 and 1, shape ``[X, K]``.

        Returns:
            Outputs, shape ``[count, X, K]``.
        """
        # Another stream than the permutation's, so that the two are independent.
        generator = torch.Generator().manual_seed(1_000_003 + self.seed)
        goal_KK = torch.eye(self.k)[:, self.learned_permutation()]
        return torch.stack([self._one(generator, goal_KK, input_XK) for _ in range(self.count)])

    def _one(self, generator: torch.Generator, goal_KK: Tensor, input_XK: Tensor) -> Tensor:
        """A new network's outputs. A one-hot input reads one column of W1, so its hidden row is
        that column."""
        first_KH = torch.randn(self.k, self.width, generator=generator)
        second_HK = torch.randn(self.width, self.k, generator=generator)
        scale = sqrt(2 / self.width)
        for _ in range(ROUNDS):
            # One step of full-batch gradient descent on the squared error of both layers.
            hidden_KH = first_KH.relu()
            error_KK = scale * (hidden_KH @ second_HK) - goal_KK
            # Both gradients are taken before either layer changes.
            pull_KH = error_KK @ second_HK.T * (first_KH > 0)
            second_HK -= RATE * scale * (hidden_KH.T @ error_KK)
            first_KH -= RATE * scale * pull_KH
        return scale * ((input_XK @ first_KH).relu() @ second_HK)


def every_input(k: int) -> Tensor:
    """All nonzero inputs of k bits, shape ``[2^k - 1, K]``."""
    numbers = torch.arange(1, 2**k)
    return (numbers[:, None] >> torch.arange(k) & 1).float()


def tangent_kernel(cosine: float, norm: float) -> float:
    """The neural tangent kernel of such networks between a one-hot input and another one.

    Args:
        cosine: Cosine of the angle between the inputs, -1 to 1.
        norm: Norm of the other input, above 0.

    Returns:
        The kernel's value at infinite width.
    """
    angle = acos(max(-1.0, min(1.0, cosine)))
    # The arc-cosine kernels of degree 0 (`slope`) and of degree 1 (`value`).
    slope = (pi - angle) / pi
    value = (sqrt(1 - cosine * cosine) + (pi - angle) * cosine) / pi
    return norm * (value + cosine * slope)


def mean_output_levels(k: int, ones: int) -> tuple[float, float]:
    """Mean outputs of networks of infinite width.

    Args:
        k: Bits of an input.
        ones: How many bits of the input are 1, at least 1.

    Returns:
        The mean output for a bit that is 0, and for a bit that is 1.
    """
    same = tangent_kernel(1.0, 1.0)
    other = tangent_kernel(0.0, 1.0)
    # The inverse of the kernel matrix, (same - other) I + other J, is a I - b J (J: all ones).
    a = 1 / (same - other)
    b = a * other / (same + (k - 1) * other)
    norm = sqrt(ones)
    # Kernel regression: outputs are k(x, inputs) times the inverse times the one-hot goals.
    hit = tangent_kernel(1 / norm, norm)
    miss = tangent_kernel(0.0, norm)
    total = ones * hit + (k - ones) * miss
    return a * miss - b * total, a * hit - b * total


def rounding_thresholds(input_XK: Tensor) -> Tensor:
    """Where the mean output of each input is rounded: halfway between both levels, shape ``[X,
    1]``.

    They depend on how many ones an input has, not on the permutation.
    """
    k = input_XK.shape[1]
    by_ones = torch.tensor([sum(mean_output_levels(k, n)) / 2 for n in range(1, k + 1)])
    return by_ones[input_XK.sum(1).long() - 1][:, None]


def right_input_shares(
    output_MXK: Tensor, input_XK: Tensor, permutation: Tensor, votes: int
) -> list[float]:
    """Let groups of networks vote by their mean output and count the inputs that come out right.

    Args:
        output_MXK: Outputs of M networks, shape ``[M, X, K]``.
        input_XK: Inputs, shape ``[X, K]``.
        permutation: The permutation to be learned, shape ``[K]``.
        votes: Networks of a group, at least 1; networks that fill no group are left out.

    Returns:
        For each group the share of inputs of which every bit is right, 0 to 1.
    """
    wanted_XK = input_XK[:, permutation] > 0.5
    middle_X1 = rounding_thresholds(input_XK)
    # Shape [G, X, K]: the mean output of each group of networks.
    groups = output_MXK[: len(output_MXK) // votes * votes].unflatten(0, (-1, votes)).mean(1)
    whole_GX = ((groups > middle_X1) == wanted_XK).all(-1)
    return whole_GX.float().mean(1).tolist()


def permutation_rows(
    sizes: Sequence[int], width: int, count: int, seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Measure how many votes it takes.

    Args:
        sizes: Numbers of bits.
        width: Hidden units of a network.
        count: Networks that are trained for each seed.
        seeds: Seeds, each with a permutation and initial weights of its own.

    Yields:
        A row for each number of bits and of votes: the share of inputs that are right, with its 95
        % interval over seeds, and the share of groups that are right on every input (`all_right`).
    """
    for k in sizes:
        input_XK = every_input(k)
        drawn = list[tuple[Tensor, Tensor]]()
        for seed in seeds:
            networks = TwoLayerNetworks(k, width, count, seed)
            drawn.append((networks.trained_outputs(input_XK), networks.learned_permutation()))
        for votes in (v for v in VOTES if v <= count):
            groups = [right_input_shares(out, input_XK, order, votes) for out, order in drawn]
            shares = [sum(g) / len(g) for g in groups]
            low, high = student_interval(shares)
            # A group is right as a whole where no input is wrong.
            whole = [sum(x == 1.0 for x in g) / len(g) for g in groups]
            yield {
                "bits": k,
                "votes": votes,
                "right": sum(shares) / len(shares),
                "low": max(0.0, low),
                "high": min(1.0, high),
                "each_seed": shares,
                "all_right": sum(whole) / len(whole),
                "all_interval": shared_trials_interval(whole, sum(map(len, groups))),
                "groups": sum(map(len, groups)),
                "width": width,
            }


def votes_needed(told: Sequence[Mapping[str, Any]], share: float = 0.5) -> dict[int, int]:
    """The fewest votes that answer every input right.

    Args:
        told: Rows of `permutation_rows`, with votes in ascending order.
        share: Share of groups that must be right on every input, 0 to 1. Default 0.5.

    Returns:
        Votes by number of bits; a number of bits for which none suffice is left out.
    """
    out = dict[int, int]()
    for row in told:
        if row["all_right"] >= share:
            out.setdefault(row["bits"], row["votes"])
    return out
