"""A bound of the mutual information of two vectors, learned from their samples (vCLUB).

Source: Cheng et al., "CLUB: a contrastive log-ratio upper bound of mutual information" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from polydec.lab.train.random_streams import generator_for

DECAYS = (0.9, 0.99)
"""Of Adam's two moments."""


class InformationEstimator(nn.Module):
    """For several pairs of vectors, how likely the second one is behind the first: a Gaussian whose
    mean and spread a small network tells.

    Its weights are buffers: what is trained against it must not change it. It learns by
    `learn_samples` alone, and a checkpoint keeps it.

    Args:
        pairs: Pairs of vectors, each with a network of its own.
        width: Numbers of a vector.
        inner: Units of the networks.
        seed: Of the first weights.
    """

    def __init__(self, pairs: int, width: int, inner: int, seed: int) -> None:
        super().__init__()
        g = generator_for(seed, 0, "information")
        shapes = {
            "enter": (pairs, width, inner),
            "enter_bias": (pairs, 1, inner),
            "mean": (pairs, inner, width),
            "mean_bias": (pairs, 1, width),
            "spread": (pairs, inner, width),
            "spread_bias": (pairs, 1, width),
        }
        self.names = tuple(shapes)
        for name, shape in shapes.items():
            first = torch.zeros(shape)
            # Vectors begin as independent of one another: the mean is 0 and the variance 1.
            if name == "enter":
                first = torch.randn(shape, generator=g) * width**-0.5
            self.register_buffer(name, first)
            for moment in ("first", "second"):
                self.register_buffer(f"{name}_{moment}", torch.zeros(shape))

    @property
    def named_weights(self) -> Mapping[str, Tensor]:
        """The weights, by name."""
        return {name: self.get_buffer(name) for name in self.names}

    def information_bound(self, x_PBW: Tensor, y_PBW: Tensor) -> Tensor:
        """An upper bound of the information, if the Gaussians are right.

        It is how much likelier the second vector is behind its own first one than behind those of
        other samples.

        Args:
            x_PBW: First vectors of B samples, of each of P pairs.
            y_PBW: Second vectors.

        Returns:
            Nats a number of a vector, summed over pairs; a scalar.
        """
        logp_PBC = gaussian_log_densities(self.named_weights, x_PBW, y_PBW)
        own_PB = logp_PBC.diagonal(dim1=1, dim2=2)
        # A number's share, so that a weight means the same for vectors of any width.
        return (own_PB.mean(1) - logp_PBC.mean((1, 2))).sum() / x_PBW.shape[2]

    def learn_samples(self, x_PBW: Tensor, y_PBW: Tensor, steps: int, rate: float) -> None:
        """Make the second vectors likelier behind their own first ones.

        Args:
            x_PBW: First vectors, as for `information_bound`; nothing reaches them.
            y_PBW: Second vectors.
            steps: Steps of Adam, at least 1.
            rate: Its learning rate.
        """
        x_PBW = x_PBW.detach()
        y_PBW = y_PBW.detach()
        for _ in range(steps):
            with torch.enable_grad():
                leaves = {
                    name: t.clone().requires_grad_() for name, t in self.named_weights.items()
                }
                logp_PBC = gaussian_log_densities(leaves, x_PBW, y_PBW)
                unlikely = -logp_PBC.diagonal(dim1=1, dim2=2).mean(1).sum()
                found = torch.autograd.grad(unlikely, list(leaves.values()))
            for name, slope in zip(leaves, found, strict=True):
                first = self.get_buffer(f"{name}_first").lerp_(slope, 1 - DECAYS[0])
                second = self.get_buffer(f"{name}_second").lerp_(slope.square(), 1 - DECAYS[1])
                # Both moments begin at 0, and their ratio is right from the first step on.
                self.get_buffer(name).sub_(rate * first / (second.sqrt() + 1e-8))


def gaussian_log_densities(w: Mapping[str, Tensor], x_PBW: Tensor, y_PCW: Tensor) -> Tensor:
    """How likely each second vector is behind each first one.

    Args:
        w: Weights of the networks, by the names of `InformationEstimator`.
        x_PBW: First vectors.
        y_PCW: Second vectors.

    Returns:
        Logarithms of densities without what is the same for all vectors, ``[P, B, C]``.
    """
    inner_PBI = torch.relu(x_PBW @ w["enter"] + w["enter_bias"])
    mean_PBW = inner_PBI @ w["mean"] + w["mean_bias"]
    # Between e^-4 and e^4: a spread that collapses would make any difference infinite.
    log_variance_PBW = 4 * torch.tanh(inner_PBI @ w["spread"] + w["spread_bias"])
    away_PBCW = y_PCW[:, None] - mean_PBW[:, :, None]
    scaled_PBCW = away_PBCW.square() * torch.exp(-log_variance_PBW)[:, :, None]
    return -0.5 * (scaled_PBCW.sum(-1) + log_variance_PBW.sum(-1)[:, :, None])
