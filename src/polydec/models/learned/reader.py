"""A small transformer without a causal mask: what reads a few inputs as a whole. It is computed from
named tensors, in training and in use alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5


@dataclass(frozen=True)
class BidirectionalEncoder:
    """width: of its inputs and outputs, a multiple of heads; layers; heads; places: inputs that it
    can tell apart by where they stand."""

    width: int
    layers: int
    heads: int
    places: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, by name."""
        W = self.width
        out = dict[str, tuple[int, ...]]()
        for i in range(self.layers):
            out |= {f"{i}_{x}": (W, W) for x in "qkvo"}
            out |= {f"{i}_up": (4 * W, W), f"{i}_down": (W, 4 * W)}
            out |= {f"{i}_before": (W,), f"{i}_between": (W,)}
        return out | {"places": (self.places, W), "norm": (W,)}

    def draw_tensors(self, dice: torch.Generator) -> dict[str, Tensor]:
        """Random tensors to begin with."""
        return {
            name: torch.ones(shape)
            if len(shape) == 1
            # Divided by the root of the inputs, so that sums keep their size.
            else torch.randn(shape, generator=dice) * shape[1] ** -0.5
            for name, shape in self.shapes.items()
        }

    def sequence_states(self, t: Mapping[str, Tensor], x_NTW: Tensor, there_NT: Tensor) -> Tensor:
        """Read N sequences of T inputs, each of which sees all others of its sequence.

        Args:
            t: The tensors of `shapes`, by name.
            x_NTW: The inputs, shape ``[N, T, W]``; T is at most `places`.
            there_NT: Whether something stands at a place, shape ``[N, T]``. Other places are seen
                by nobody.

        Returns:
            What leaves the final norm, shape ``[N, T, W]``; rows where nothing stands mean nothing.
        """
        x_NTW = x_NTW + t["places"][: x_NTW.shape[1]]
        # One mask for all heads and all readers: it hides what is not there, and nothing else.
        see_N11T = there_NT[:, None, None]
        for i in range(self.layers):
            # Norms stand before each part, so the residual stream itself is never normed inside.
            h = F.rms_norm(x_NTW, (self.width,), t[f"{i}_before"], EPS)
            q, k, v = (
                F.linear(h, t[f"{i}_{name}"]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for name in "qkv"
            )
            y = F.scaled_dot_product_attention(q, k, v, see_N11T).transpose(1, 2).flatten(2)
            x_NTW = x_NTW + F.linear(y, t[f"{i}_o"])
            h = F.rms_norm(x_NTW, (self.width,), t[f"{i}_between"], EPS)
            x_NTW = x_NTW + F.linear(F.silu(F.linear(h, t[f"{i}_up"])), t[f"{i}_down"])
        return F.rms_norm(x_NTW, (self.width,), t["norm"], EPS)
